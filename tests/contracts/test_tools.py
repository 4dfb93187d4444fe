"""What every tool promises, by its branching; add a tool here and it is held to it."""

import asyncio
import sys
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import pytest

from ramify.config.run_config import ToolsConfig
from ramify.core.branch import Branch, Piece
from ramify.core.codec import ByteCodec
from ramify.core.format import ToolAction
from ramify.core.problem import Problem
from ramify.core.segment import Segment, ToolCall, token_array
from ramify.core.tool import Lasting, Tool, ToolResult
from ramify.runner.toolbox import Toolbox
from ramify.testing.clock import run_virtual
from ramify.testing.notebook import Notebook
from ramify.tools.calculator import Calculator
from ramify.tools.function import FunctionTool, tool
from ramify.tools.mcp import Mcp
from ramify.tools.passages import Passage
from ramify.tools.search import Search
from ramify.tools.search_index import build_index
from ramify.tools.sqlite_index import memory_index

T = TypeVar("T")


def reverse(arguments: str) -> str:
    return arguments[::-1]


@tool
def weather(city: str, days: int = 1) -> dict[str, object]:
    return {"city": city, "days": days}


@cache
def listing() -> dict[str, Any]:
    """Options of a server that was asked once for its tools."""
    server = str(Path(__file__).parents[1] / "tools" / "mcp_server.py")
    options: dict[str, Any] = {"command": sys.executable, "args": [server]}
    return {**options, **Mcp(**options).recorded()}


def of_server(name: str) -> Tool:
    (only,) = Mcp(**listing(), only=[name]).tools
    return only


PASSAGES = (Passage("one two", "A"), Passage("two three", "B"), Passage("three four", "C"))
INDEX = memory_index(PASSAGES)


def search_on_disk() -> Search:
    """A search whose calls run in threads. The file is open, so its folder may go."""
    with TemporaryDirectory() as folder:
        build_index(Path(folder) / "index", PASSAGES)
        return Search(Path(folder) / "index")


@dataclass(frozen=True)
class Case:
    """A tool, and calls that make sense one after another; `other` is one that does so after the first."""

    build: Callable[[], Tool]
    calls: tuple[str, ...]
    other: str
    run: Callable[[Coroutine[Any, Any, Any]], Any] = run_virtual
    """Real processes need real time."""


PROBLEM = Problem("p", "make 99 from 13 7 1 5")
CASES = {
    "calculator": Case(Calculator, ("7+1", "13*5", "nonsense", "65+8"), "13-5"),
    "notebook": Case(Notebook, ("write red", "write blue", "nonsense", "read"), "write green"),
    "function": Case(lambda: FunctionTool(reverse), ("one", "two", "", "three"), "four"),
    "search": Case(lambda: Search(lambda problem: INDEX), ("one", "two three", "", "nonsense"), "four"),
    "typed function": Case(lambda: weather, ("Rome", '{"city": "Oslo", "days": 2}', "", "Bern"), "Kyiv"),
    "server that is read": Case(
        lambda: of_server("add"),
        ('{"a": 1, "b": 2}', '{"a": 3, "b": 4}', '{"b": 5, "a": 6}'),
        '{"a": 7, "b": 8}',
        asyncio.run,
    ),
    "server that remembers": Case(lambda: of_server("remember"), ("red", "blue", "", "green"), "yellow", asyncio.run),
    "search on disk": Case(search_on_disk, ("one", "two three", "", "nonsense"), "four"),
}
ODD_ARGUMENTS = [
    "",
    " ",
    "\x00",
    "\n" * 1000,
    "7" * 100_000,
    "'; exit()",
    "\u0667+1",
    "\ufffd",
    "{}",
    "</calc>",
    "__import__('os')",
]


@pytest.fixture(params=CASES.values(), ids=CASES.keys())
def case(request: pytest.FixtureRequest) -> Case:
    return request.param


BOXES: list[Toolbox] = []
"""Those of the running test."""


def box_of(case: Case, **options: int) -> Toolbox:
    BOXES.append(Toolbox([case.build()], ToolsConfig(**options), problems={"t": PROBLEM}))
    return BOXES[-1]


def run(case: Case, main: Coroutine[Any, Any, T]) -> T:
    """Run `main`, and close every toolbox behind it."""

    async def closed() -> T:
        try:
            return await main
        finally:
            while BOXES:
                await BOXES.pop().close()

    return case.run(closed())


def branch(*calls: ToolCall) -> Branch:
    pieces = [Piece(0, Segment("prompt", token_array([1])))]
    pieces += [Piece(n, Segment("given", token_array([3]), tool_call=call)) for n, call in enumerate(calls, 1)]
    return Branch(ByteCodec(), len(calls), tuple(pieces))


async def answer(box: Toolbox, arguments: str, *, after: list[ToolCall]) -> ToolCall:
    return await box.call("t", branch(*after), ToolAction(box.names[0], arguments))


async def chain(box: Toolbox, case: Case) -> list[ToolCall]:
    calls: list[ToolCall] = []
    for arguments in case.calls:
        calls.append(await answer(box, arguments, after=calls))
    return calls


def outcome(call: ToolCall) -> tuple[str, str]:
    return call.status, call.result


def test_the_calls_of_the_case_are_answered(case: Case) -> None:
    calls = run(case, chain(box_of(case), case))
    assert [c.status in ("ok", "empty", "error") for c in calls] == [True] * len(calls)
    assert calls[0].status == "ok"


@pytest.mark.parametrize("arguments", ODD_ARGUMENTS)
def test_no_argument_breaks_a_session(case: Case, arguments: str) -> None:
    async def main() -> None:
        made = case.build()
        session = await made.open(PROBLEM)
        result = await session.call(arguments)
        assert isinstance(result, ToolResult)
        result.text.encode()
        assert isinstance(await session.call(case.calls[0]), ToolResult)
        await session.close()
        if isinstance(made, Lasting):
            await made.let_go()

    run(case, main())


def test_a_branch_is_not_changed_by_what_its_siblings_do(case: Case) -> None:
    async def main() -> None:
        alone = await chain(box_of(case), case)
        box = box_of(case)
        calls: list[ToolCall] = []
        for arguments in case.calls:
            await answer(box, case.other, after=calls)
            calls.append(await answer(box, arguments, after=calls))
            await answer(box, case.other, after=calls)
        assert [*map(outcome, calls)] == [*map(outcome, alone)]
        await box.close()

    run(case, main())


def test_a_fork_at_every_observation_sees_what_a_branch_of_its_own_would(case: Case) -> None:
    async def main() -> None:
        box = box_of(case)
        trunk = await chain(box, case)
        for length in range(len(trunk) + 1):
            forked = await answer(box, case.other, after=trunk[:length])
            fresh = box_of(case)
            calls: list[ToolCall] = []
            for arguments in case.calls[:length]:
                calls.append(await answer(fresh, arguments, after=calls))
            assert outcome(forked) == outcome(await answer(fresh, case.other, after=calls))

    run(case, main())


def test_a_branch_restored_from_a_store_or_evicted_goes_on_as_if_nothing_had_happened(case: Case) -> None:
    async def main() -> None:
        *past, last = await chain(box_of(case), case)
        again = [ToolCall(c.tool, c.arguments, c.status, c.result) for c in past]
        assert outcome(await answer(box_of(case), last.arguments, after=again)) == outcome(last)
        crowded = await chain(box_of(case, max_parked=1), case)
        assert [*map(outcome, crowded)] == [*map(outcome, [*past, last])]

    run(case, main())


def test_a_closed_run_leaves_no_session(case: Case) -> None:
    async def main() -> None:
        box = box_of(case)
        await chain(box, case)
        box.release("t")
        assert box.metrics()["tools/parked_sessions"] == 0
        await box.close()

    run(case, main())


def test_a_tool_says_how_it_branches(case: Case) -> None:
    tool = case.build()
    assert tool.branching in ("share", "fork", "replay", "refuse")
    assert tool.name.isidentifier()
