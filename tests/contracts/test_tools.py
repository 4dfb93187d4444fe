"""What every tool promises, by its branching; add a tool here and it is held to it."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from ramify.config.run_config import ToolsConfig
from ramify.core.branch import Branch, Piece
from ramify.core.codec import ByteCodec
from ramify.core.format import ToolAction
from ramify.core.problem import Problem
from ramify.core.segment import Segment, ToolCall, token_array
from ramify.core.tool import Tool, ToolResult
from ramify.runner.clock import run_virtual
from ramify.runner.toolbox import Toolbox
from ramify.tools.calculator import Calculator
from ramify.tools.function import FunctionTool
from ramify.tools.notebook import Notebook
from ramify.tools.search import Search
from ramify.tools.search_index import Passage, build_index
from ramify.tools.sqlite_index import memory_index


def reverse(arguments: str) -> str:
    return arguments[::-1]


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


PROBLEM = Problem("p", "make 99 from 13 7 1 5")
CASES = {
    "calculator": Case(Calculator, ("7+1", "13*5", "nonsense", "65+8"), "13-5"),
    "notebook": Case(Notebook, ("write red", "write blue", "nonsense", "read"), "write green"),
    "function": Case(lambda: FunctionTool(reverse), ("one", "two", "", "three"), "four"),
    "search": Case(lambda: Search(lambda problem: INDEX), ("one", "two three", "", "nonsense"), "four"),
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


def box_of(case: Case, **options: int) -> Toolbox:
    return Toolbox([case.build()], ToolsConfig(**options), problems={"t": PROBLEM})


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
    calls = run_virtual(chain(box_of(case), case))
    assert [c.status in ("ok", "empty", "error") for c in calls] == [True] * len(calls)
    assert calls[0].status == "ok"


@pytest.mark.parametrize("arguments", ODD_ARGUMENTS)
def test_no_argument_breaks_a_session(case: Case, arguments: str) -> None:
    async def main() -> None:
        session = await case.build().open(PROBLEM)
        result = await session.call(arguments)
        assert isinstance(result, ToolResult)
        result.text.encode()
        assert isinstance(await session.call(case.calls[0]), ToolResult)
        await session.close()

    run_virtual(main())


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

    run_virtual(main())


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

    run_virtual(main())


def test_a_branch_restored_from_a_store_or_evicted_goes_on_as_if_nothing_had_happened(case: Case) -> None:
    async def main() -> None:
        *past, last = await chain(box_of(case), case)
        again = [ToolCall(c.tool, c.arguments, c.status, c.result) for c in past]
        assert outcome(await answer(box_of(case), last.arguments, after=again)) == outcome(last)
        crowded = await chain(box_of(case, max_parked=1), case)
        assert [*map(outcome, crowded)] == [*map(outcome, [*past, last])]

    run_virtual(main())


def test_a_closed_run_leaves_no_session(case: Case) -> None:
    async def main() -> None:
        box = box_of(case)
        await chain(box, case)
        box.release("t")
        assert box.metrics()["tools/parked_sessions"] == 0
        await box.close()

    run_virtual(main())


def test_a_tool_says_how_it_branches(case: Case) -> None:
    tool = case.build()
    assert tool.branching in ("share", "fork", "replay", "refuse")
    assert tool.name.isidentifier()
