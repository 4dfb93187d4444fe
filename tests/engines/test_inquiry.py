"""One asks for all who wait."""

import asyncio

import pytest

from ramify.core.errors import EngineError
from ramify.engines.served.inquiry import Inquiry


class Server:
    """Answers, or fails, when it is let."""

    def __init__(self, *, is_good: bool) -> None:
        self.is_good = is_good
        self.num_asked = 0
        self.is_settled = False
        self.was_asked = asyncio.Event()
        self.answers = asyncio.Event()

    async def ask(self) -> None:
        self.num_asked += 1
        self.was_asked.set()
        await self.answers.wait()
        if not self.is_good:
            raise EngineError("timeout", f"question {self.num_asked}", is_retryable=True, retry_after_s=2.0)
        self.is_settled = True


async def five_at_once(server: Server, inquiry: Inquiry) -> list[asyncio.Task[None]]:
    tasks = [asyncio.create_task(inquiry.settle()) for _ in range(5)]
    await server.was_asked.wait()
    return tasks


async def test_a_server_that_does_not_answer_costs_all_who_wait_one_question() -> None:
    server = Server(is_good=False)
    inquiry = Inquiry(server.ask, is_settled=lambda: server.is_settled)
    tasks = await five_at_once(server, inquiry)
    server.answers.set()
    faults = await asyncio.gather(*tasks, return_exceptions=True)
    assert server.num_asked == 1
    assert len({id(fault) for fault in faults}) == 5
    for fault in faults:
        assert isinstance(fault, EngineError)
        told = (fault.reason, fault.detail, str(fault), fault.is_retryable, fault.retry_after_s)
        assert told == ("timeout", "question 1", "timeout: question 1", True, 2.0)
    with pytest.raises(EngineError, match="question 2"):
        await inquiry.settle()


async def test_what_was_settled_for_one_is_settled_for_all() -> None:
    server = Server(is_good=True)
    inquiry = Inquiry(server.ask, is_settled=lambda: server.is_settled)
    tasks = await five_at_once(server, inquiry)
    server.answers.set()
    await asyncio.gather(*tasks)
    await inquiry.settle()
    assert server.num_asked == 1


async def test_when_the_one_who_asks_is_cancelled_the_next_one_asks() -> None:
    server = Server(is_good=True)
    inquiry = Inquiry(server.ask, is_settled=lambda: server.is_settled)
    tasks = await five_at_once(server, inquiry)
    tasks[0].cancel()
    server.answers.set()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(results[0], asyncio.CancelledError)
    assert results[1:] == [None] * 4
    assert server.num_asked == 2
