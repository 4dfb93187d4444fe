"""Questions of many callers in few requests, in virtual time."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from ramify.core.errors import ToolError
from ramify.testing.clock import run_virtual
from ramify.tools.together import Together

WINDOW_S = 0.005


@dataclass
class Server:
    """Answers every question with itself doubled, a second after it came; what begins with `bad` is an error."""

    requests: list[tuple[float, list[str]]] = field(default_factory=list)
    num_cancelled: int = 0

    async def ask(self, questions: Sequence[str]) -> Sequence[str | Exception]:
        self.requests.append((asyncio.get_running_loop().time(), list(questions)))
        try:
            await asyncio.sleep(1)
        except asyncio.CancelledError:
            self.num_cancelled += 1
            raise
        if "all" in questions:
            raise ToolError("down", "all of it")
        return [ToolError("bad", q) if q.startswith("bad") else q * 2 for q in questions]

    def together(self, max_questions: int = 100) -> Together[str, str]:
        return Together[str, str](self.ask, window_s=WINDOW_S, max_questions=max_questions)


async def after(seconds: float, together: Together[str, str], question: str) -> str:
    await asyncio.sleep(seconds)
    return await together.answer(question)


def test_questions_of_one_moment_go_out_as_one_request_and_each_gets_its_own_answer() -> None:
    async def main() -> None:
        server = Server()
        together = server.together()
        assert await asyncio.gather(*(together.answer(q) for q in "cab")) == ["cc", "aa", "bb"]
        assert server.requests == [(WINDOW_S, ["c", "a", "b"])]

    run_virtual(main())


def test_what_comes_within_the_window_goes_along_and_what_comes_during_a_request_goes_next() -> None:
    async def main() -> None:
        server = Server()
        together = server.together()
        times = [0.0, WINDOW_S / 2, 0.3, 0.9]
        answers = await asyncio.gather(*(after(t, together, q) for t, q in zip(times, "abcd", strict=True)))
        assert answers == ["aa", "bb", "cc", "dd"]
        assert server.requests == [(WINDOW_S, ["a", "b"]), (1 + WINDOW_S, ["c", "d"])]
        assert await together.answer("e") == "ee"
        assert server.requests[2] == (2 + 2 * WINDOW_S, ["e"])

    run_virtual(main())


def test_a_request_holds_so_many_questions_and_the_others_come_in_order() -> None:
    async def main() -> None:
        server = Server()
        together = server.together(max_questions=2)
        assert await asyncio.gather(*(together.answer(q) for q in "abcde")) == ["aa", "bb", "cc", "dd", "ee"]
        assert [questions for _, questions in server.requests] == [["a", "b"], ["c", "d"], ["e"]]

    run_virtual(main())


def test_an_error_reaches_the_callers_it_is_about_and_nobody_else() -> None:
    async def main() -> None:
        together = Server().together()
        asked = [together.answer(q) for q in ("a", "bad", "c")]
        first, second, third = await asyncio.gather(*asked, return_exceptions=True)
        assert (first, third) == ("aa", "cc")
        assert isinstance(second, ToolError)
        both = await asyncio.gather(together.answer("all"), together.answer("b"), return_exceptions=True)
        assert [str(error) for error in both] == ["down: all of it"] * 2
        assert await together.answer("d") == "dd"

    run_virtual(main())


def test_a_cancelled_caller_takes_its_question_back() -> None:
    async def main() -> None:
        server = Server()
        together = server.together()
        gone, stays = (asyncio.create_task(together.answer(q)) for q in ("gone", "stays"))
        await asyncio.sleep(0)
        gone.cancel()
        assert await stays == "staysstays"
        assert server.requests == [(WINDOW_S, ["stays"])]

    run_virtual(main())


def test_a_request_is_cancelled_when_its_last_caller_goes_and_the_next_goes_out_at_once() -> None:
    async def main() -> None:
        server = Server()
        together = server.together()
        callers = [asyncio.create_task(together.answer(q)) for q in "ab"]
        waiting = asyncio.create_task(after(0.2, together, "c"))
        await asyncio.sleep(0.3)
        callers[0].cancel()
        await asyncio.sleep(0.1)
        assert server.num_cancelled == 0
        callers[1].cancel()
        assert await waiting == "cc"
        assert server.num_cancelled == 1
        assert [questions for _, questions in server.requests] == [["a", "b"], ["c"]]
        assert server.requests[1][0] == pytest.approx(0.4)

    run_virtual(main())


@pytest.mark.parametrize("num_steps", range(12))
def test_a_caller_cancelled_at_any_moment_leaves_the_others_their_answers(num_steps: int) -> None:
    async def main() -> None:
        together = Server().together()
        callers = [asyncio.create_task(together.answer(q)) for q in "abc"]
        for _ in range(num_steps):
            await asyncio.sleep(0.1 if num_steps % 2 else 0)
        callers[1].cancel()
        first, second, third = await asyncio.gather(*callers, return_exceptions=True)
        assert (first, third) == ("aa", "cc")
        assert second == "bb" or isinstance(second, asyncio.CancelledError)
        assert await together.answer("d") == "dd"

    run_virtual(main())


def test_closing_cancels_what_is_waited_for_and_may_be_repeated() -> None:
    async def main() -> None:
        server = Server()
        together = server.together()
        await together.close()
        callers = [asyncio.create_task(after(t, together, q)) for t, q in ((0, "a"), (0.5, "b"))]
        await asyncio.sleep(0.6)
        await together.close()
        await together.close()
        ends = await asyncio.gather(*callers, return_exceptions=True)
        assert [type(end) for end in ends] == [asyncio.CancelledError] * 2
        assert server.num_cancelled == 1
        assert len(asyncio.all_tasks()) == 1
        assert await together.answer("c") == "cc"

    run_virtual(main())
