"""Rules for every tool, by its branching, checked directly and in a `Toolbox`, which is how a run calls it."""

import asyncio
from collections.abc import Callable, Collection, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from ramify.config.run_config import ToolsConfig
from ramify.core.branch import Branch, Piece
from ramify.core.codec import ByteCodec
from ramify.core.format import ToolAction
from ramify.core.problem import Problem
from ramify.core.segment import Segment, ToolCall, token_array
from ramify.core.tool import Lasting, Tool, ToolResult, ToolSession
from ramify.runner.toolbox import Toolbox
from ramify.testing.contracts.rules import BrokenRule, demand, keep_all, name_of, rules_of

PROBLEM: Final = Problem("p", "make 99 from 13 7 1 5")
TREE: Final = "t"
CALL_S: Final = 30.0
"""Seconds after which a call counts as hanging."""
ODD_ARGUMENTS: Final = (
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
)


class Runner(Protocol):
    """Runs a coroutine to its end: `asyncio.run`, or `run_virtual` for a tool without real processes."""

    def __call__(self, main: Coroutine[Any, Any, None], /) -> None: ...


@dataclass(frozen=True, slots=True)
class ToolCase:
    """A tool, and calls that make sense one after another."""

    build: Callable[[], Tool]
    calls: Sequence[str] = ("one", "two", "three")
    """The first call succeeds."""
    other: str = "four"
    """A call that makes sense at the start and after each of `calls`, and is not one of them."""
    run: Runner = asyncio.run
    problem: Problem = PROBLEM


def check_tool(
    tool: Callable[[], Tool],
    *,
    calls: Sequence[str] = ("one", "two", "three"),
    other: str = "four",
    run: Runner = asyncio.run,
    problem: Problem = PROBLEM,
    without: Collection[str] = (),
) -> None:
    """Check every rule of a tool except those in `without`. Raises `BrokenRule` that says which rule was broken and
    where.

    `tool` makes a tool: a class, or a function without parameters. `calls` are arguments that make sense one after
    another; the first call succeeds. `other` is one more call. Give your own if the tool does not accept any text.
    """
    case = ToolCase(tool, calls, other, run, problem)
    keep_all(TOOL_RULES, case, f"tool {name_of(tool)}", without=without)


def it_has_a_name_and_says_how_it_branches(case: ToolCase) -> None:
    tool = case.build()
    ways = ("share", "fork", "replay", "refuse")
    demand(tool.branching in ways, f"branching is {tool.branching!r}, not one of {ways}")
    demand(tool.name.isidentifier(), f"the name {tool.name!r} is no identifier")


def its_calls_are_answered(case: ToolCase) -> None:
    async def main(boxes: _Boxes) -> None:
        calls = await _chain(boxes.new(), case)
        for number, call in enumerate(calls):
            is_answered = call.status in ("ok", "empty", "error")
            demand(is_answered, f"call {number} ({call.arguments!r}) ended with status {call.status!r}: {call.result}")
        first = calls[0]
        demand(first.status == "ok", f"the first call {first.arguments!r} did not succeed: {first.result!r}")

    _run(case, main)


def no_argument_breaks_a_session(case: ToolCase) -> None:
    """Any text from the model, however odd, is answered with text, and so is the next call."""

    async def main(boxes: _Boxes) -> None:
        for arguments in ODD_ARGUMENTS:
            tool = case.build()
            session = await tool.open(case.problem.for_agents())
            await _answered(session, arguments)
            await _answered(session, case.calls[0], f"after the arguments {arguments[:40]!r}, ")
            await session.close()
            if isinstance(tool, Lasting):
                await tool.let_go()

    _run(case, main)


def forks_of_a_session_live_on_by_themselves(case: ToolCase) -> None:
    """For tools whose branching is `fork`: two forks that act differently, and the session itself, give the same
    answers as separate sessions that repeat the same calls."""

    async def main(boxes: _Boxes) -> None:
        tool = case.build()
        if tool.branching != "fork":
            return
        ways = {"the first fork": [case.other, *case.calls], "the second fork": [*case.calls, case.other]}
        for length in range(len(case.calls) + 1):
            trunk, past = await tool.open(case.problem.for_agents()), case.calls[:length]
            for arguments in past:
                await trunk.call(arguments)
            forks = {name: await trunk.fork() for name in ways} | {"the forked session": trunk}
            for name, session in forks.items():
                calls = ways.get(name, [case.other])
                seen = [_said(await session.call(arguments)) for arguments in calls]
                wanted = await _replayed(tool, case, [*past, *calls])
                for number, (one, other) in enumerate(zip(seen, wanted[length:], strict=True)):
                    where = f"{name} behind {length} calls, its call {number} ({calls[number]!r})"
                    demand(one == other, f"{where} gave {one!r}; replayed in a session of its own {other!r}")
            for session in forks.values():
                await session.close()
        if isinstance(tool, Lasting):
            await tool.let_go()

    _run(case, main)


def a_branch_is_not_changed_by_what_its_siblings_do(case: ToolCase) -> None:
    async def main(boxes: _Boxes) -> None:
        alone = await _chain(boxes.new(), case)
        box = boxes.new()
        calls: list[ToolCall] = []
        for number, arguments in enumerate(case.calls):
            await _call(box, case.other, after=calls)
            calls.append(await _call(box, arguments, after=calls))
            await _call(box, case.other, after=calls)
            where = f"call {number} ({arguments!r}) of a branch whose siblings called {case.other!r}"
            _demand_same(calls[-1], alone[number], where, "alone")

    if case.build().branching != "refuse":
        _run(case, main)


def a_fork_at_every_observation_sees_what_a_branch_of_its_own_would(case: ToolCase) -> None:
    async def main(boxes: _Boxes) -> None:
        box = boxes.new()
        trunk = await _chain(box, case)
        for length in range(len(trunk) + 1):
            forked = await _call(box, case.other, after=trunk[:length])
            fresh = boxes.new()
            calls: list[ToolCall] = []
            for arguments in case.calls[:length]:
                calls.append(await _call(fresh, arguments, after=calls))
            expected = await _call(fresh, case.other, after=calls)
            _demand_same(forked, expected, f"{case.other!r} on a fork behind call {length}", "on a branch of its own")

    if case.build().branching != "refuse":
        _run(case, main)


def a_branch_restored_from_a_store_or_evicted_goes_on_as_before(case: ToolCase) -> None:
    async def main(boxes: _Boxes) -> None:
        calls = await _chain(boxes.new(), case)
        *past, last = calls
        again = [ToolCall(c.tool, c.arguments, c.status, c.result) for c in past]
        restored = await _call(boxes.new(), last.arguments, after=again)
        _demand_same(restored, last, f"call {len(past)} ({last.arguments!r}) of a restored branch", "before")
        for number, call in enumerate(await _chain(boxes.new(max_parked=1), case)):
            _demand_same(call, calls[number], f"call {number} with one session parked", "before")

    if case.build().branching != "refuse":
        _run(case, main)


def a_closed_run_leaves_no_session(case: ToolCase) -> None:
    async def main(boxes: _Boxes) -> None:
        box = boxes.new()
        await _chain(box, case)
        box.release(TREE)
        num_parked = box.metrics()["tools/parked_sessions"]
        demand(num_parked == 0, f"{num_parked:g} sessions are still parked")

    _run(case, main)


TOOL_RULES: Final = rules_of(
    it_has_a_name_and_says_how_it_branches,
    its_calls_are_answered,
    no_argument_breaks_a_session,
    forks_of_a_session_live_on_by_themselves,
    a_branch_is_not_changed_by_what_its_siblings_do,
    a_fork_at_every_observation_sees_what_a_branch_of_its_own_would,
    a_branch_restored_from_a_store_or_evicted_goes_on_as_before,
    a_closed_run_leaves_no_session,
)
"""Rule in plain English -> the function that checks it."""


class _Boxes:
    """Makes the toolboxes of a rule, and closes them afterwards."""

    def __init__(self, case: ToolCase) -> None:
        self._case = case
        self._open: list[Toolbox] = []

    def new(self, **options: Any) -> Toolbox:
        problems = {TREE: self._case.problem}
        self._open.append(Toolbox([self._case.build()], ToolsConfig(**options), problems=problems))
        return self._open[-1]

    async def close(self) -> None:
        while self._open:
            await self._open.pop().close()


def _run(case: ToolCase, main: Callable[[_Boxes], Coroutine[Any, Any, None]]) -> None:
    async def closed() -> None:
        boxes = _Boxes(case)
        try:
            await main(boxes)
        finally:
            await boxes.close()

    case.run(closed())


async def _answered(session: ToolSession, arguments: str, before: str = "") -> None:
    where = f"{before}the arguments {arguments[:40]!r}"
    try:
        result = await asyncio.wait_for(session.call(arguments), CALL_S)
    except TimeoutError:
        raise BrokenRule(f"{where}: no answer within {CALL_S:g} s") from None
    demand(isinstance(result, ToolResult), f"{where}: the result is {result!r}, not a ToolResult")
    result.text.encode()


async def _replayed(tool: Tool, case: ToolCase, calls: Sequence[str]) -> list[tuple[str, str]]:
    """The results of the calls in a separate session."""
    session = await tool.open(case.problem.for_agents())
    said = [_said(await session.call(arguments)) for arguments in calls]
    await session.close()
    return said


def _said(result: ToolResult) -> tuple[str, str]:
    return result.status, result.text


def _branch(calls: Sequence[ToolCall]) -> Branch:
    pieces = [Piece(0, Segment("prompt", token_array([1])))]
    pieces += [Piece(n, Segment("given", token_array([3]), tool_call=call)) for n, call in enumerate(calls, 1)]
    return Branch(ByteCodec(), len(calls), tuple(pieces))


async def _call(box: Toolbox, arguments: str, *, after: Sequence[ToolCall]) -> ToolCall:
    return await box.call(TREE, _branch(after), ToolAction(box.names[0], arguments))


async def _chain(box: Toolbox, case: ToolCase) -> list[ToolCall]:
    calls: list[ToolCall] = []
    for arguments in case.calls:
        calls.append(await _call(box, arguments, after=calls))
    return calls


def _demand_same(call: ToolCall, expected: ToolCall, where: str, otherwise: str) -> None:
    seen, wanted = (call.status, call.result), (expected.status, expected.result)
    demand(seen == wanted, f"{where} gave {seen!r}; {otherwise} {wanted!r}")
