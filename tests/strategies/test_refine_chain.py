"""Refine chain: what stops it, what it returns, and what a rewrite may cite."""

from collections.abc import Callable

import numpy as np
import pytest
from tests.golden.mctsr import AnswersWorld
from tests.strategies.world import Journey

from ramify.core.command import Grow, Judge, Score
from ramify.core.errors import ConfigError, ContractError
from ramify.core.growth import GrowthRules
from ramify.core.tree import Step, Tree
from ramify.runner.driver import Asked, Start
from ramify.strategies.refine_chain import SELF_REFINE, RefineChain, RefineChainConfig

RULES = GrowthRules(quoting=frozenset({"critique", "reflect", "rewrite", "rewrite_2", "rewrite_3"}))


def played(config: RefineChainConfig, **options: object) -> Journey:
    strategy = RefineChain(config, np.random.default_rng(0))
    return Journey(strategy, AnswersWorld(), rules=RULES, **options).run()  # type: ignore[arg-type]


def asked(trip: Journey) -> list[str]:
    commands = [command for event in trip.events if isinstance(event, Asked) for command in event.commands]
    return [command.action if isinstance(command, Grow) else "judge" for command in commands]


def best(trip: Journey) -> str:
    """Action of the answer the chain ends with."""
    candidates = trip.driver.strategy.candidates(trip.tree)  # type: ignore[attr-defined]
    return trip.tree.action(max(candidates, key=lambda candidate: candidate.score).node)


def after(number: int, *, action: str) -> Callable[[Tree, Judge], list[float | None]]:
    """Approves the `number`-th node of that action."""

    def judge(tree: Tree, command: Judge) -> list[float | None]:
        (node,) = command.nodes
        return [float(sum(tree.action(n) == action for n in range(node + 1)) >= number)]

    return judge


def test_a_chain_goes_on_until_an_answer_is_approved() -> None:
    trip = played(RefineChainConfig(), judge=after(1, action="rewrite"))
    assert asked(trip) == ["policy", "judge", "critique", "rewrite", "judge"]
    assert best(trip) == "rewrite"


def test_a_first_answer_that_is_approved_is_the_answer() -> None:
    trip = played(RefineChainConfig(), judge=lambda tree, command: [1.0])
    assert (asked(trip), best(trip)) == (["policy", "judge"], "policy")


def test_a_chain_ends_after_so_many_answers() -> None:
    trip = played(RefineChainConfig(max_attempts=3), judge=lambda tree, command: [0.0])
    assert asked(trip).count("rewrite") == 2
    assert len(trip.driver.strategy.candidates(trip.tree)) == 3  # type: ignore[attr-defined]


def test_feedback_that_approves_keeps_the_answer_or_as_published_has_it_rewritten() -> None:
    judge = after(1, action="critique")
    kept = played(RefineChainConfig(stop="feedback"), judge=judge)
    assert (asked(kept), best(kept)) == (["policy", "critique", "judge"], "policy")
    rewritten = played(SELF_REFINE, judge=judge)
    assert (asked(rewritten), best(rewritten)) == (["policy", "critique", "judge", "rewrite"], "rewrite")


def test_without_a_judge_every_attempt_is_made() -> None:
    trip = played(RefineChainConfig(stop="never", max_attempts=3))
    assert asked(trip) == ["policy", "critique", "rewrite", "critique", "rewrite"]


def test_a_rewrite_cites_as_many_feedbacks_as_the_window_holds() -> None:
    trip = played(RefineChainConfig(stop="never", max_attempts=5, window=3, feedback="reflect"))
    assert asked(trip)[2::2] == ["rewrite", "rewrite_2", "rewrite_3", "rewrite_3"]
    assert asked(trip)[1::2] == ["reflect"] * 4


@pytest.mark.parametrize(("failing", "num_answers"), [(0, 0), (2, 1), (3, 1), (6, 2)])
def test_a_failure_ends_the_chain_with_the_answers_it_has(failing: int, num_answers: int) -> None:
    trip = played(
        RefineChainConfig(max_attempts=4),
        judge=lambda tree, command: [0.0],
        fails=lambda command_id: "engine_error" if command_id == failing else None,
    )
    assert len(trip.driver.strategy.candidates(trip.tree)) == num_answers  # type: ignore[attr-defined]


def test_a_judgement_that_failed_approves_nothing() -> None:
    trip = played(RefineChainConfig(max_attempts=2), fails=lambda command_id: "judge" if command_id == 1 else None)
    assert asked(trip) == ["policy", "judge", "critique", "rewrite"]
    assert asked(played(RefineChainConfig(max_attempts=2), judge=lambda tree, command: [None]))[-1] == "rewrite"


class Judged(AnswersWorld):
    """The first answer has been scored when it ended, by a judge that saw the truth."""

    def steps(self, tree: Tree, start: Start) -> list[Step]:
        (step,) = super().steps(tree, start)
        scores = (Score("exact", 1.0, is_oracle=True),) if step.action == "policy" else ()
        return [Step(step.segments, step.stop, step.action, step.edge, step.role, scores=scores)]


def test_a_judge_that_saw_the_answer_stops_a_chain_only_where_that_is_declared() -> None:
    def search(config: RefineChainConfig) -> Journey:
        return Journey(RefineChain(config, np.random.default_rng(0)), Judged(), rules=RULES).run()

    with pytest.raises(ContractError, match="which saw the answer"):
        search(RefineChainConfig(judge="exact"))
    assert asked(search(RefineChainConfig(judge="exact", oracle="declared"))) == ["policy"]


@pytest.mark.parametrize(
    "fields",
    [{"max_attempts": 0}, {"window": 0}, {"feedback": ""}, {"judge": "reward"}, {"approve": float("nan")}],
)
def test_impossible_settings_are_refused(fields: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        RefineChainConfig(**fields)  # type: ignore[arg-type]
