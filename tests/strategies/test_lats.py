import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from tests.strategies.test_tot import Letters, Values
from tests.strategies.world import Journey, journey, path_text, varied

from ramify.core.command import Score
from ramify.core.errors import ConfigError, ContractError
from ramify.core.tree import Step, Tree
from ramify.runner.driver import Start
from ramify.strategies.lats import AS_PUBLISHED, LATS, LATSConfig, back_up, bound
from ramify.strategies.parts.visited import Visited

SMALL = LATSConfig(width=2, iterations=2, depth_limit=3, rollout_depth=3)


class Rewarded(Letters):
    """Ends have a reward of the task: 1 for one text, 0 for the others."""

    def __init__(self, right: str = "", *, is_oracle: bool = False, **options: object) -> None:
        super().__init__(**options)  # type: ignore[arg-type]
        self._right, self._is_oracle = right, is_oracle

    def steps(self, tree: Tree, start: Start) -> list[Step]:
        (step,) = super().steps(tree, start)
        assert start.place is not None
        text = path_text(tree, start.place.parent) + self._alphabet[start.place.index % len(self._alphabet)]
        scores = (Score("task", float(text == self._right), is_oracle=self._is_oracle),)
        return [replace(step, scores=scores if step.stop else ())]


def run(config: LATSConfig, values: Mapping[str, float | None], **options: object) -> tuple[Journey, LATS, Values]:
    strategy, judge = LATS(config, np.random.default_rng(0)), Values(values)
    world = options.pop("world", Letters(num_levels=config.depth_limit))
    return journey(strategy, world, judge=judge, **options), strategy, judge  # type: ignore[arg-type]


def grown_from(trip: Journey) -> list[tuple[str, str]]:
    return [(path_text(trip.tree, fork.node), fork.rule) for fork in trip.tree.forks]


def answers(trip: Journey, strategy: LATS) -> dict[str, float]:
    return {path_text(trip.tree, c.node): c.score for c in strategy.candidates(trip.tree)}


def test_the_best_step_of_an_expansion_is_rolled_out_to_an_end() -> None:
    trip, strategy, _ = run(varied(SMALL, iterations=1), {"b": 0.9, "ba": 0.7, "bab": 0.8})
    assert grown_from(trip) == [("", "lats"), ("b", "rollout"), ("ba", "rollout")]
    assert answers(trip, strategy) == {"baa": 0.5, "bab": 0.8}
    assert (strategy.root.visits, strategy.root.value) == (1, 0.8)


def test_states_of_rollouts_are_searched_further_where_they_are_attached() -> None:
    trip, _, _ = run(SMALL, {"b": 0.9, "ba": 0.7})
    assert grown_from(trip)[3] == ("a", "lats")
    forgotten, _, _ = run(varied(SMALL, rollout_states="loose", unvisited="value"), {"a": 0.1, "b": 0.9})
    assert grown_from(forgotten)[3] == ("b", "lats")


def test_a_rollout_without_an_end_brings_the_mean_of_its_values() -> None:
    config = varied(SMALL, iterations=1, depth_limit=6, rollout_depth=2)
    values = {"b": 0.9, "ba": 0.6, "bab": 0.9}
    assert run(config, values)[1].root.value == pytest.approx(0.8)
    assert run(varied(config, rollout_value="mean_with_zero"), values)[1].root.value == pytest.approx(0.5)
    assert run(varied(config, cut_value=-1.0), values)[1].root.value == -1.0
    assert run(replace(config, rollout_depth=0), values)[1].root.value == 0.9


def test_a_rollout_counted_from_the_root_is_shorter() -> None:
    config = varied(SMALL, iterations=1, depth_limit=6, rollout_depth=2)
    assert len(run(config, {})[0].tree.forks) == 3
    assert len(run(varied(config, rollout_from="root"), {})[0].tree.forks) == 2


def test_a_rollout_takes_the_best_step_or_the_first_that_ended() -> None:
    config = varied(SMALL, iterations=1)
    values, ends = {"b": 0.9, "bb": 0.2, "ba": 0.8}, frozenset({"bb"})
    assert len(run(config, values, world=Letters(ends=ends))[0].tree.forks) == 3
    first = varied(config, rollout_choice="ended")
    trip, strategy, _ = run(first, values, world=Letters(ends=ends))
    assert len(trip.tree.forks) == 2
    assert strategy.root.value == 0.2


def test_values_by_position_are_shifted_by_steps_that_ended() -> None:
    config = varied(SMALL, iterations=1, join="position", ends="reward")
    world = Rewarded(ends=frozenset({"a"}))
    _, strategy, _ = run(config, {"b": 0.7}, world=world)
    first = strategy.root.children
    assert first is not None and first[1].tip == 2
    assert [(child.has_ended, child.reward) for child in first] == [(True, 0.0), (False, None)]
    assert first[0].value == -1.0, "it was taken for the best, and rolled out"
    joined = run(varied(config, join="node"), {"b": 0.7}, world=Rewarded(ends=frozenset({"a"})))[1].root.children
    assert joined is not None and joined[1].visits == 1


def test_the_reward_of_the_task_may_be_asked_for_and_its_oracle_must_be_declared() -> None:
    config = varied(SMALL, ends="reward", iterations=20, success=1.0)
    trip, strategy, judge = run(config, {}, world=Rewarded("bab"))
    assert answers(trip, strategy)["bab"] == 1.0
    assert all(len(text) < 3 for (text,) in judge.asked)
    with pytest.raises(ContractError, match="declared"):
        run(config, {}, world=Rewarded("bab", is_oracle=True))
    assert run(AS_PUBLISHED, {}, world=Rewarded("bab", is_oracle=True))[0].driver.is_finished


def test_success_ends_the_search() -> None:
    config = varied(SMALL, iterations=20)
    every, _, _ = run(config, {"aaa": 1.0})
    soon, strategy, _ = run(replace(config, success=1.0), {"aaa": 1.0})
    assert len(soon.tree) < len(every.tree)
    assert answers(soon, strategy)["aaa"] == 1.0


def test_an_exhausted_tree_ends_the_search_before_its_iterations() -> None:
    trip, strategy, _ = run(varied(SMALL, iterations=10_000), {})
    assert strategy.root.is_closed
    assert len(trip.tree) == 1 + 2 + 4 + 8
    assert len(answers(trip, strategy)) == 8


def test_what_says_the_same_is_dropped_and_not_judged() -> None:
    trip, strategy, judge = run(SMALL, {}, world=Letters("aa"))
    assert judge.asked == [("a",), ("aa",), ("aaa",)]
    assert len(strategy.candidates(trip.tree)) == 1


def test_a_step_without_a_value_is_dropped() -> None:
    trip, strategy, _ = run(SMALL, {"a": None, "b": math.nan})
    assert (len(trip.tree.forks), answers(trip, strategy)) == (1, {})


def test_a_step_limit_without_an_end_makes_no_answer() -> None:
    config = varied(SMALL, last_step="step", iterations=50)
    trip, strategy, _ = run(config, {}, world=Letters(num_levels=9))
    assert answers(trip, strategy) == {}
    assert trip.driver.is_finished


def test_a_failed_end_takes_its_own_value_and_what_is_above_it_the_rollouts() -> None:
    for failed_end, expected in ((-1.0, -1.0), (None, 0.4)):
        root = Visited(0)
        leaf = Visited(1, root, 1, has_ended=True, reward=0.0, value=0.9)
        back_up(leaf, 0.4, failed_end=failed_end)
        assert (root.value, leaf.value) == (pytest.approx(0.4), pytest.approx(expected))


def test_an_unvisited_state_goes_first_or_by_its_value() -> None:
    assert bound(0.8, 0, 3) == math.inf
    assert bound(0.8, 0, 3, unvisited="value") == 0.8


@pytest.mark.parametrize(
    "wrong",
    [
        {"width": 0},
        {"rollout_depth": -1},
        {"exploration": math.inf},
        {"cut_value": math.nan},
        {"judge": "reward"},
    ],
)
def test_impossible_configurations_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="lats"):
        varied(LATSConfig(), **wrong)  # type: ignore[arg-type]
