"""Many trees grow side by side: bounded, without barriers, each failing alone, and all of it can be cancelled anywhere."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest
from tests.runner.parts import OneChain, Plan, Small, grown, problems, small_with

from ramify.core.action import ActionConfig
from ramify.core.command import Cancel, Close, Command, Failed, Grow, Judge, Tokens
from ramify.core.limits import Limits
from ramify.core.problem import Problem
from ramify.core.strategy import Phase
from ramify.core.tool import Branching, ToolResult
from ramify.core.tree import ROOT, Tree
from ramify.engines.faults import Delay, Fault
from ramify.engines.policies import chains
from ramify.engines.scripted import Scripted
from ramify.engines.scripts import ScriptedTurn
from ramify.runner.api import Rollout, assemble, rollout
from ramify.runner.check import ledger_faults, tree_faults
from ramify.runner.clock import VirtualLoop, run_virtual
from ramify.runner.config import GrowthConfig, RunConfig, StrategyConfig, ToolsConfig
from ramify.runner.events import Event, OutcomeTold, StepGrown, TreeClosed, TreeOpened
from ramify.runner.scheduler import TooManyFailures


@dataclass
class Watch:
    """An observer that keeps every event with the time it came at."""

    events: list[tuple[float, Event]] = field(default_factory=list)

    def __call__(self, event: Event) -> None:
        self.events.append((asyncio.get_running_loop().time(), event))

    def closed(self) -> dict[int, float]:
        """Tree -> when it closed."""
        return {event.index: time for time, event in self.events if isinstance(event, TreeClosed)}

    def num_open(self) -> list[int]:
        """Trees in flight after each event that changed their number."""
        counts, number = [], 0
        for _, event in self.events:
            number += isinstance(event, TreeOpened) - isinstance(event, TreeClosed)
            counts.append(number)
        return counts


def watched(
    questions: Sequence[Problem],
    engine: Scripted,
    *,
    strategy: type[Plan] | None = OneChain,
    task: object | None = None,
    **fields: object,
) -> tuple[Watch, Rollout]:
    watch = Watch()
    config = RunConfig(**fields)  # type: ignore[arg-type]
    made = rollout(
        questions, config=config, engine=engine, task=task or Small(), strategy=strategy, observers=[watch]
    )
    return watch, run_virtual(made)


def slow_tree(index: int, *, slow_s: float) -> Callable[[ScriptedTurn], Delay]:
    """Calls of one tree take `slow_s`, all others one second."""
    return lambda turn: Delay(slow_s if turn.request_id.startswith(f"{index}/") else 1.0)


# -- back-pressure and barriers -----------------------------------------------------------------------------------------


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


def test_rounds_of_one_tree_wait_for_no_other_tree() -> None:
    strategy = StrategyConfig(name="offline", options={"initial_rollouts": 2, "expansion_iterations": 3})
    engine = Scripted(chains(1), delay=slow_tree(0, slow_s=100.0))
    watch, result = watched(problems(4), engine, strategy=None, config_strategy=None) if False else _offline(engine)
    assert max(time for index, time in watch.closed().items() if index) <= 8.0
    assert all(len(tree.leaves()) == 5 for tree in result.trees)
    assert strategy.name == "offline"


def _offline(engine: Scripted) -> tuple[Watch, Rollout]:
    raise NotImplementedError
