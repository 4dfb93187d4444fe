"""Servers that misbehave on their standard streams: each costs its own session, and nobody else's time."""

import asyncio
import contextlib
import os
import re
import signal
import time
from pathlib import Path

import pytest
from tests.tools.mcp_calls import PROBLEM, ask, called, is_alive, mcp, servers, tools_of, until, used

from ramify.core.errors import ConfigError, ToolError
from ramify.runner.toolbox import Toolbox
from ramify.tools.mcp_client import MAX_UNANSWERED, Connection, McpServer
from ramify.tools.mcp_process import MAX_MESSAGE_BYTES, MAX_WORDS_BYTES, LastWords


@pytest.fixture(scope="module")
def listing() -> str:
    return str(mcp().recorded()["listed"])


@pytest.mark.slow
@pytest.mark.parametrize(
    "how", ["twice", "garbage lines", "notifications", "requests"], ids=["answers twice", *["floods"] * 3]
)
def test_what_nobody_asked_for_is_passed_over(listing: str, how: str) -> None:
    """In the calls after it too, which get their own answers."""

    async def work(box: Toolbox) -> list[str]:
        return [(await ask(box, "fault", how)).result, (await ask(box, "add", {"a": 1, "b": 2})).result]

    first = "first" if how == "twice" else how
    assert used(tools_of(listing, only=["fault", "add"]), work) == [first, "3"]


def test_bytes_that_are_no_text_spoil_their_character_alone(listing: str) -> None:
    assert called(tools_of(listing, only=["fault"]), "fault", "no utf-8").result == "a\ufffdc"


@pytest.mark.slow
def test_a_line_without_an_end_ends_its_server_before_it_is_held(listing: str) -> None:
    began = time.monotonic()
    call = called(tools_of(listing, only=["fault"]), "fault", "long line", max_retries=0)
    assert call.status == "crashed"
    assert call.result.endswith(f"[ended: it wrote a line longer than {MAX_MESSAGE_BYTES} bytes]")
    assert time.monotonic() - began < 15


def test_of_a_flood_of_complaints_the_last_words_are_kept(listing: str) -> None:
    call = called(tools_of(listing, only=["fault"]), "fault", "complaints", max_retries=0)
    assert call.status == "crashed"
    assert call.result.endswith("no memory\nat last")
    assert len(call.result) < MAX_WORDS_BYTES


@pytest.mark.slow
def test_a_server_that_floods_from_its_start_slows_nobody_down(listing: str) -> None:
    """Its start takes its time and fails; whatever else runs in the loop has most of it."""
    made = mcp("flooding", start_s=1.0)

    async def main() -> float:
        connection = Connection(made.server().address)
        waiting = asyncio.ensure_future(connection.ready())
        longest = 0.0
        while not waiting.done():
            began = time.thread_time()
            await asyncio.sleep(0)
            longest = max(longest, time.thread_time() - began)
        with pytest.raises(ToolError, match=r"did not answer in 1 s; its last words: [\s\S]*no memory"):
            await waiting
        await connection.close()
        return longest

    assert asyncio.run(main()) < 0.5
    assert not servers()


@pytest.mark.parametrize("method", ["initialize", "notifications/initialized", "tools/list"])
def test_a_server_that_dies_at_any_stage_of_its_start_is_told_with_its_last_words(listing: str, method: str) -> None:
    made = mcp(f"dies={method}")
    with pytest.raises(ConfigError, match=re.escape(f"its last words: dead at {method}")):
        _ = made.tools
    call = called(tools_of(listing, f"dies={method}", only=["add"]), "add", {"a": 1, "b": 2}, max_retries=0)
    assert (call.status, f"dead at {method}" in call.result) == ("crashed", True)


async def test_a_server_that_died_between_calls_is_missed_before_the_next() -> None:
    server = mcp().server()
    session = server.shared()
    os.kill(int((await session.call("pid", {})).content[0].text), signal.SIGKILL)  # type: ignore[union-attr]
    await asyncio.to_thread(until, lambda: session.is_over)
    assert (await server.shared().call("fault", {"how": "fine"})).content[0].text == "fine"  # type: ignore[union-attr]
    await server.let_go()
    assert not servers()


async def answered(server: McpServer, tool: str, how: str) -> str | None:
    """What the session of the run answers in a moment."""
    await server.shared().ready()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0.1):
            said = await server.shared().call(tool, {"how": how})
            return said.content[0].text  # type: ignore[union-attr]
    return None


@pytest.mark.slow
async def test_the_session_of_a_run_that_answers_nobody_gives_way_to_a_new_one() -> None:
    """A server that reads no more holds its pipes open: without this every later call would wait to its deadline."""
    server = mcp().server()
    deaf = server.shared()
    assert [await answered(server, "fault", "deaf") for _ in range(MAX_UNANSWERED)] == [None] * MAX_UNANSWERED
    assert server.shared() is not deaf
    assert deaf.is_over, "nobody waits for it any more"
    assert (await server.shared().call("fault", {"how": "fine"})).content[0].text == "fine"  # type: ignore[union-attr]
    await server.let_go()
    assert not servers()


async def test_calls_that_are_given_up_among_answers_leave_the_session_as_it_is() -> None:
    server = mcp().server()
    session = server.shared()
    for _ in range(MAX_UNANSWERED + 1):
        assert (await session.call("fault", {"how": "fine"})).is_error is False
        assert await answered(server, "fault", "hang") is None
    assert server.shared() is session
    await server.let_go()


def test_a_server_that_asks_for_a_model_is_told_there_is_none_and_its_tool_goes_on(listing: str) -> None:
    assert called(tools_of(listing, only=["ask"]), "ask", "x").result == "Sampling not supported"


@pytest.mark.parametrize("ways", [["astray"], pytest.param(["astray", "stubborn"], marks=pytest.mark.slow)])
def test_what_a_server_started_ends_with_it_also_what_left_its_process_group(ways: list[str]) -> None:
    """As a browser does that is started detached."""

    async def main() -> int:
        connection = Connection(mcp(*ways).server().address)
        await connection.ready()
        (pid,) = re.findall(r"last words: (\d+)", str(connection.words))
        assert is_alive(int(pid))
        await connection.close()
        return int(pid)

    assert not is_alive(asyncio.run(main()))
    assert not servers()


def test_closing_is_cancelled_at_any_time_and_leaves_nothing(listing: str) -> None:
    async def main(delay_s: float) -> None:
        (tool,) = tools_of(listing, "astray", only=["spend"]).values()
        session = await tool.open(PROBLEM)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(delay_s):
                await session.close()
        await tool.let_go()  # type: ignore[attr-defined]
        assert asyncio.all_tasks() == {asyncio.current_task()}

    for delay_s in (0.0, 0.01, 0.05):
        asyncio.run(main(delay_s))
        assert not servers()


def test_last_words_are_a_bounded_end_of_what_was_said() -> None:
    words = LastWords()
    assert str(words) == ""
    words.add("é".encode() * 10_000 + b"\xff the end \n")
    assert str(words).endswith("é the end")
    assert len(str(words)) < MAX_WORDS_BYTES


def test_a_server_in_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    made = mcp(cwd=str(tmp_path / "nowhere"))
    with pytest.raises(ConfigError, match="FileNotFoundError"):
        _ = made.tools
