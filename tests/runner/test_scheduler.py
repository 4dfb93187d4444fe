"""Many trees grow side by side: bounded, without barriers, each failing alone, and all can be cancelled anywhere."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from tests.runner.parts import OneChain, Plan, Right, Small, grown, problems, small_with, tip

from ramify.config.run_config import RunConfig, StrategyConfig, ToolsConfig
from ramify.core.branch import Branch
from ramify.core.command import Cancel, Close, Command, Grow, Grown, Judge
from ramify.core.judge import Verdict
from ramify.core.limits import Limits
from ramify.core.problem import Problem
from ramify.core.tool import Branching, ToolResult
from ramify.core.tree import ROOT, Tree
from ramify.formats.tags import TagFormat
from ramify.runner.driver import Delivery
from ramify.runner.events import Event, OutcomeTold, TreeClosed, TreeOpened
from ramify.runner.library import Rollout, rollout
from ramify.runner.scheduler import TooManyFailures
from ramify.store.check import tree_faults
from ramify.testing.clock import VirtualLoop, run_virtual
from ramify.testing.planned_faults import Delay, Fault
from ramify.testing.policies import chains
from ramify.testing.scripted import Scripted
from ramify.testing.scripts import ScriptedTurn

OFFLINE = StrategyConfig(name="offline", options={"initial_rollouts": 2, "expansion_iterations": 3})


@dataclass
class Watch:
    """An observer that keeps every event with the time it came at."""

    events: list[tuple[float, Event]] = field(default_factory=list)

    def __call__(self, event: Event) -> None:
        self.events.append((asyncio.get_running_loop().time(), event))

    def closed(self) -> dict[int, float]:
        """Tree -> when it closed."""
        return {event.index: time for time, event in self.events if isinstance(event, TreeClosed)}

    def times(self, kind: type[Event]) -> list[float]:
        """When the events of one kind came."""
        return [time for time, event in self.events if isinstance(event, kind)]

    def num_open(self) -> list[int]:
        """Trees in flight after each event."""
        counts, number = [], 0
        for _, event in self.events:
            number += isinstance(event, TreeOpened) - isinstance(event, TreeClosed)
            counts.append(number)
        return counts


def watched(
    questions: Sequence[Problem], engine: Scripted, plan: type[Plan] | None = OneChain, **fields: Any
) -> tuple[Watch, Rollout]:
    watch = Watch()
    made = rollout(questions, config=RunConfig(**fields), engine=engine, task=Small(), strategy=plan, observers=[watch])
    return watch, run_virtual(made)


def slow_tree(index: int, *, slow_s: float) -> Callable[[ScriptedTurn], Delay]:
    """Calls of one tree take `slow_s`, all others one second."""
    return lambda turn: Delay(slow_s if turn.request_id.startswith(f"{index}/") else 1.0)


# -- back-pressure and barriers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("max_trees", [1, 3, 12, 64])
def test_never_more_trees_are_in_flight_than_allowed_and_no_place_stays_empty(max_trees: int) -> None:
    watch, result = watched(problems(12), Scripted(chains(1), delay=Delay(1.0)), max_trees=max_trees)
    assert max(watch.num_open()) == min(max_trees, 12)
    assert len(result.trees) == 12
    assert result.report.seconds == 2.0 * -(-12 // max_trees)


def test_a_slow_tree_holds_no_other_up() -> None:
    engine = Scripted(chains(1), delay=slow_tree(0, slow_s=100.0))
    watch, _ = watched(problems(8), engine, max_trees=2)
    assert watch.closed() == {0: 200.0} | {i: 2.0 * i for i in range(1, 8)}


def test_the_rounds_of_a_tree_wait_for_no_other_tree() -> None:
    engine = Scripted(chains(1), delay=slow_tree(0, slow_s=100.0))
    watch, result = watched(problems(4), engine, None, strategy=OFFLINE)
    assert [len(tree.leaves()) for tree in result.trees] == [5] * 4
    closed = watch.closed()
    assert closed.pop(0) > 400.0
    assert max(closed.values()) <= 8.0


def test_the_chains_of_a_tree_wait_for_no_other_chain() -> None:
    class Chains(Plan):
        def wanted(self, tree: Tree) -> Sequence[Command] | None:
            return None if self.told else [Grow(ROOT)] * 8

    def delay(turn: ScriptedTurn) -> Delay:
        return Delay(100.0 if turn.call == 0 else 1.0)

    watch, _ = watched(problems(1), Scripted(chains(1), delay=delay), Chains, delivery="eager")
    assert watch.times(OutcomeTold) == [2.0] * 7 + [101.0]


def test_a_strategy_is_asked_at_once_when_an_outcome_is_told() -> None:
    class Relay(Plan):
        """Two chains, step by step: whenever a step is told, the next one of its chain is asked for."""

        def ask(self, tree: Tree) -> Sequence[Command]:
            if not self.num_asked:
                self.num_asked = 2
                return [Grow(ROOT, until="step")] * 2
            node = tip(self.told[-1])
            self.num_asked += not tree.is_ended(node)
            return [] if tree.is_ended(node) else [Grow(node, until="step")]

        def is_done(self, tree: Tree) -> bool:
            return len(self.told) == 6

    def delay(turn: ScriptedTurn) -> Delay:
        return Delay(10.0 if turn.call == 0 else 1.0)

    watch, _ = watched(problems(1), Scripted(chains(2), delay=delay), Relay, delivery="eager")
    assert watch.times(OutcomeTold) == [1.0, 2.0, 3.0, 10.0, 11.0, 12.0]
    watch, _ = watched(problems(1), Scripted(chains(2), delay=delay), Relay, delivery="ordered")
    assert watch.times(OutcomeTold) == [10.0, 10.0, 11.0, 11.0, 12.0, 12.0]


# -- deadlines --------------------------------------------------------------------------------------------------------


def test_a_tree_out_of_time_ends_its_paths_with_what_they_had() -> None:
    engine = Scripted(chains(5), delay=Delay(10.0))
    _, result = watched(problems(2), engine, limits=Limits(seconds=25.0))
    assert result.report.seconds == 25.0
    assert result.report.failed_trees == 0
    assert result.report.stop_words == {"deadline": 2}
    for tree in result.trees:
        (leaf,) = tree.leaves()
        assert len(tree.branch(leaf).tool_calls) == 2
        assert tree.reward(leaf) == 0.0
    assert engine.num_active == 0


def test_a_tool_has_no_longer_than_its_tree() -> None:
    async def sleep(arguments: str) -> str:
        await asyncio.sleep(100.0)
        return "late"

    result = grown(OneChain, task=small_with(sleep), limits=Limits(seconds=7.0))
    assert result.report.seconds == 7.0
    assert result.report.stop_words == {"deadline": 1}


def test_each_tree_has_its_own_seconds() -> None:
    engine = Scripted(chains(3), delay=slow_tree(1, slow_s=5.0))
    watch, result = watched(problems(3), engine, max_trees=1, limits=Limits(seconds=6.0))
    assert result.report.stop_words == {"answer": 2, "deadline": 1}
    assert watch.closed() == {0: 4.0, 1: 10.0, 2: 14.0}


def test_the_seconds_of_the_run_bind_a_tree_as_well() -> None:
    engine = Scripted(chains(3), delay=Delay(5.0))
    _, result = watched(problems(1), engine, run_limits=Limits(seconds=6.0), limits=Limits(seconds=100.0))
    assert result.report.seconds == 6.0


def test_nothing_more_is_sampled_after_the_deadline() -> None:
    engine = Scripted(chains(1), delay=Delay(4.0))
    strategy = StrategyConfig(name="chains", options={"n": 2, "repeat": "budget"})
    _, result = watched(problems(1), engine, None, strategy=strategy, limits=Limits(seconds=10.0))
    assert result.report.seconds == 10.0
    assert engine.num_calls == 6
    assert result.report.stop_words == {"answer": 2, "deadline": 2}


# -- faults -----------------------------------------------------------------------------------------------------------


def test_a_fault_of_one_tree_closes_that_tree_alone() -> None:
    class Moody(OneChain):
        def tell(self, tree: Tree, outcome: object) -> None:
            if tree.problem.uid == "p1":
                raise KeyError("not this one")

            super().tell(tree, outcome)  # type: ignore[arg-type]

    watch, result = watched(problems(4), Scripted(chains(1), delay=Delay(1.0)), Moody)
    assert result.report.failed_trees == 1
    assert result.report.unfinished == {"p1": "ContractError: strategy Moody.tell raised KeyError: 'not this one'"}
    assert [len(tree.leaves()) for tree in result.trees] == [1] * 4
    assert set(watch.closed()) == {0, 1, 2, 3}


def test_a_tree_that_fails_takes_its_own_commands_down() -> None:
    class Greedy(Plan):
        """A second ask for what is not there, while two chains are growing."""

        def ask(self, tree: Tree) -> Sequence[Command]:
            self.num_asked += 1
            return [Grow(ROOT, until="step"), Grow(ROOT), Grow(ROOT)] if self.num_asked == 1 else [Grow(99)]

        def is_done(self, tree: Tree) -> bool:
            return False

    engine = Scripted(chains(9), delay=lambda turn: Delay(1.0 + turn.call))
    watch, result = watched(problems(2), engine, Greedy, delivery="eager")
    assert "no node 99" in result.report.unfinished["p0"]
    assert set(watch.closed().values()) == {1.0, 4.0}
    assert engine.num_active == 0


@pytest.mark.parametrize("method", ["ask", "is_done", "phase"])
def test_whatever_a_strategy_raises_ends_its_tree_and_names_the_fault(method: str) -> None:
    def broken(self: Plan, tree: Tree) -> None:
        raise ZeroDivisionError("by the strategy")

    plan = type("Broken", (OneChain,), {method: broken})
    report = grown(plan).report
    assert report.failed_trees == 1
    assert "ZeroDivisionError: by the strategy" in report.unfinished["p"]


@pytest.mark.parametrize("what", ["engine", "judge", "format"])
def test_a_part_that_cancels_itself_hangs_nothing(what: str) -> None:
    def cancels(*_: object) -> None:
        raise asyncio.CancelledError

    async def cancels_soon(*_: object) -> None:
        raise asyncio.CancelledError

    task, engine = Small(), Scripted(chains(1))
    if what == "engine":
        engine = Scripted(cancels)  # type: ignore[arg-type]
    elif what == "judge":
        task = Small(judges=(type("Ends", (Right,), {"judge": cancels_soon})(),))
    else:
        task = Small(format=type("Ends", (TagFormat,), {"read": cancels})(tags={"calculator": "calc"}))
    result = grown(OneChain, engine, task=task)
    (tree,) = result.trees
    match what:
        case "engine":
            assert tree.notes(1)["fault"] == "engine_raised: the engine cancelled the call itself"
        case "judge":
            assert tree.notes(tree.leaves()[0])["judge"] == "judge 'right' cancelled itself"
        case _:
            assert "was cancelled by the engine, judge or format" in result.report.unfinished["p"]


def test_a_fault_of_an_observer_ends_the_run_and_not_its_trees() -> None:
    events: list[Event] = []

    def broken_pipe(event: Event) -> None:
        if isinstance(event, OutcomeTold) and event.index == 2:
            raise BrokenPipeError("nobody reads")

    engine = Scripted(chains(1), delay=Delay(1.0))
    made = rollout(
        problems(8),
        config=RunConfig(max_trees=4),
        engine=engine,
        task=Small(),
        strategy=OneChain,
        observers=[events.append, broken_pipe],
    )
    with pytest.raises(BrokenPipeError, match="nobody reads"):
        run_virtual(made)
    assert all(event.reason == "done" for event in events if isinstance(event, TreeClosed))
    assert engine.num_active == 0


def test_commands_name_only_actions_and_judges_that_are_configured() -> None:
    class Odd(OneChain):
        def wanted(self, tree: Tree) -> Sequence[Command] | None:
            match self.told:
                case []:
                    return [Grow(ROOT)]
                case [Grown(_, _, leaf)]:
                    return [Judge((leaf,), "rigth")] if tree.problem.uid == "p0" else [Grow(ROOT, action="polcy")]
            return None

    _, result = watched(problems(2), Scripted(chains(0)), Odd)
    assert result.report.unfinished["p0"] == "ContractError: there is no judge 'rigth'; did you mean 'right'?"
    assert "no such action; did you mean 'policy'?" in result.report.unfinished["p1"]


def test_too_many_failed_commands_stop_the_run() -> None:
    engine = Scripted(chains(1), faults=[Fault("error", share=1.0, is_retryable=False)])
    with pytest.raises(TooManyFailures, match=r"20 of 20 commands failed, more than max_failed_share = 0\.05.*500"):
        watched(problems(40), engine)
    assert engine.num_active == 0


def test_trees_in_flight_are_cancelled_when_the_run_stops() -> None:
    def first_are_slow(turn: ScriptedTurn) -> Delay:
        return Delay(100.0 if turn.call < 2 else 1.0)

    engine = Scripted(
        chains(1),
        delay=first_are_slow,
        faults=[Fault("error", when=lambda turn: turn.call > 1, is_retryable=False)],
    )
    with pytest.raises(TooManyFailures):
        watched(problems(40), engine, max_trees=8)
    assert engine.num_active == 0


def test_few_failures_are_outcomes_and_not_more() -> None:
    engine = Scripted(chains(1), faults=[Fault("error", calls=(3,), is_retryable=False)])
    _, result = watched(problems(40), engine)
    assert (result.report.leaves, result.report.failed_leaves, result.report.failed_trees) == (39, 1, 0)


def test_below_twenty_outcomes_no_share_is_judged() -> None:
    engine = Scripted(chains(1), faults=[Fault("error", share=1.0, is_retryable=False)])
    _, result = watched(problems(19), engine)
    assert result.report.failed_leaves == 19


# -- cancelled commands -----------------------------------------------------------------------------------------------


class Told(Plan):
    """Asks for all of `commands` at once."""

    commands: Sequence[Command] = ()

    def wanted(self, tree: Tree) -> Sequence[Command] | None:
        return None if self.told else self.commands


@pytest.mark.parametrize("delivery", ["ordered", "eager"])
def test_a_command_cancelled_before_it_began_ends_once(delivery: Delivery) -> None:
    class Hasty(Told):
        commands = (Grow(ROOT), Grow(ROOT), Cancel(0))

    result = grown(Hasty, Scripted(chains(1), delay=Delay(1.0)), delivery=delivery)
    (tree,) = result.trees
    assert result.report.unfinished == {}
    assert len(tree.leaves()) == 1
    assert tree.num_failed == 1
    assert [*tree_faults(tree)] == []


def test_a_command_cancelled_while_it_waits_for_the_budget_ends_without_a_node() -> None:
    class Waiting(Told):
        commands = (Grow(ROOT), Grow(ROOT), Cancel(1))

    result = grown(Waiting, Scripted(chains(1), delay=Delay(1.0)), limits=Limits(leaves=1))
    (tree,) = result.trees
    assert result.report.unfinished == {}
    assert (len(tree.leaves()), tree.num_failed) == (1, 0)


def test_cancelling_a_command_that_has_ended_changes_nothing() -> None:
    class Late(Plan):
        def ask(self, tree: Tree) -> Sequence[Command]:
            if not self.num_asked:
                self.num_asked = 2
                return [Grow(ROOT), Grow(ROOT)]
            if len(self.told) == 1:
                self.num_asked = 3
                return [Cancel(1)]
            return []

        def is_done(self, tree: Tree) -> bool:
            return len(self.told) == 3

    result = grown(Late, Scripted(chains(1), delay=lambda turn: Delay(2.0 - turn.call % 2)))
    assert len(result.trees[0].leaves()) == 2
    assert result.trees[0].num_failed == 0


@pytest.mark.parametrize("delivery", ["ordered", "eager"])
def test_a_closed_path_with_growths_below_it_is_told_and_billed_once(delivery: Delivery) -> None:
    class Shut(Plan):
        """Take a step, grow two continuations of it and close it while they run."""

        def wanted(self, tree: Tree) -> Sequence[Command] | None:
            match self.told:
                case []:
                    return [Grow(ROOT, until="step")]
                case [Grown(_, _, node)]:
                    return [Grow(node), Grow(node), Close(node, "enough")]
            return None

    result = grown(Shut, Scripted(chains(3), delay=Delay(1.0)), delivery=delivery)
    (tree,) = result.trees
    assert result.report.unfinished == {}
    assert result.report.seconds == 1.0
    assert [*tree_faults(tree)] == []


# -- cancelling the run -----------------------------------------------------------------------------------------------


@dataclass
class Counted:
    """A tool that takes half a second and counts its open sessions."""

    branching: Branching = "fork"
    name: str = "calculator"
    num_open: int = 0

    async def open(self, problem: Problem) -> "CountedSession":
        await asyncio.sleep(0.1)
        return CountedSession(self)


class CountedSession:
    def __init__(self, tool: Counted) -> None:
        self.tool = tool
        tool.num_open += 1

    async def call(self, arguments: str) -> ToolResult:
        await asyncio.sleep(0.5)
        return ToolResult(arguments)

    async def fork(self) -> "CountedSession":
        await asyncio.sleep(0.1)
        return CountedSession(self.tool)

    async def close(self) -> None:
        await asyncio.sleep(0.1)
        self.tool.num_open -= 1


@dataclass(frozen=True)
class Slow(Right):
    """A judge that takes its time."""

    async def judge(self, branches: Sequence[Branch], problem: Problem) -> list[Verdict]:
        await asyncio.sleep(0.3)
        return await super().judge(branches, problem)


class Busy(Plan):
    """Two chains, one cancelled by the end of the other's first step; a judgement; a close."""

    def wanted(self, tree: Tree) -> Sequence[Command] | None:
        match self.told:
            case []:
                return [Grow(ROOT, until="step"), Grow(ROOT)]
            case [Grown(_, _, node), Grown(_, _, leaf)]:
                return [Judge((leaf,), "right"), Grow(node), Close(node, "enough")]
        return None


class SteppedLoop(VirtualLoop):
    """Virtual time; at one turn of the loop `victim` is cancelled."""

    def __init__(self, cancel_at: int) -> None:
        self.victim: asyncio.Task[Any] | None = None
        self._left = cancel_at
        super().__init__()

    def _run_once(self) -> None:
        """What asyncio calls for each turn."""
        self._left -= self.victim is not None
        if self.victim is not None and self._left == 0:
            self.victim.cancel()
        super()._run_once()  # type: ignore[misc]


PLANS: dict[str, tuple[type[Plan] | None, StrategyConfig]] = {
    "chains": (None, StrategyConfig(name="chains", options={"n": 2})),
    "offline": (None, StrategyConfig(name="offline", options={"initial_rollouts": 2, "expansion_iterations": 1})),
    "online": (None, StrategyConfig(name="online", options={"n": 3, "initial_rollouts": 2})),
    "busy": (Busy, StrategyConfig()),
}


@pytest.mark.parametrize(
    ("plan", "branching", "stride"),
    [
        ("chains", "fork", 1),
        ("busy", "replay", 1),
        ("offline", "fork", 5),
        ("online", "replay", 5),
        pytest.param("offline", "fork", 1, marks=pytest.mark.slow),
        pytest.param("online", "fork", 1, marks=pytest.mark.slow),
    ],
)
def test_a_run_cancelled_at_any_step_leaves_nothing_behind(plan: str, branching: Branching, stride: int) -> None:
    strategy, chosen = PLANS[plan]

    async def cancelled(loop: SteppedLoop) -> bool:
        """Whether the run was cancelled before its end."""
        tool = Counted(branching)
        engine = Scripted(chains(1, 2), delay=lambda turn: Delay(1.0 + turn.seed % 3))
        config = RunConfig(strategy=chosen, max_trees=2, tools=ToolsConfig(max_parked=3))
        growing = rollout(
            problems(3), config=config, engine=engine, task=small_with(tool, judges=(Slow(),)), strategy=strategy
        )
        loop.victim = asyncio.create_task(growing)
        (came,) = await asyncio.gather(loop.victim, return_exceptions=True)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert engine.num_active == 0
        assert tool.num_open == 0
        assert isinstance(came, Rollout | asyncio.CancelledError), repr(came)
        assert isinstance(came, asyncio.CancelledError) or not came.report.unfinished
        return isinstance(came, asyncio.CancelledError)

    number, was_cancelled = 1 - stride, True
    while was_cancelled:
        number += stride
        loop = SteppedLoop(cancel_at=number)
        with asyncio.Runner(loop_factory=lambda loop=loop: loop) as runner:
            was_cancelled = runner.run(cancelled(loop))
    assert number > 20
