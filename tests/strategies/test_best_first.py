import random
from collections.abc import Callable
from typing import Any

import pytest
from tests.golden.abmcts import Answering
from tests.strategies.world import Journey, SeededWorld, journey, shape

from ramify.core.command import Grow
from ramify.core.errors import ConfigError
from ramify.core.tree import ROOT, Tree
from ramify.runner.driver import Asked
from ramify.strategies.best_first import AS_PUBLISHED, BestFirst, BestFirstConfig
from ramify.strategies.parts.draws import Draws


class NoDraws(Draws):
    """Best-first draws nothing."""


def search(config: BestFirstConfig) -> BestFirst:
    return BestFirst(config, NoDraws())


def played(config: BestFirstConfig, judge: Callable[[Tree, int], float | None], **options: Any) -> Journey:
    return journey(search(config), Answering(), judge=lambda tree, c: [judge(tree, n) for n in c.nodes], **options)


def places(trip: Journey) -> list[int]:
    """Where each answer was derived, in the order asked."""
    asked = (command for event in trip.events if isinstance(event, Asked) for command in event.commands)
    return [command.node for command in asked if isinstance(command, Grow)]


def listed(*scores: float | None) -> Callable[[Tree, int], float | None]:
    """Scores by node, from node 1 on."""
    return lambda tree, node: scores[node - 1]


def test_answers_are_derived_from_the_best_that_waits() -> None:
    trip = played(BestFirstConfig(num_answers=8), listed(0.4, 0.6, 0.5, 0.3, 0.9, 0.1, 0.0, 0.0))
    assert places(trip) == [ROOT, ROOT, 2, 2, 3, 3, 5, 5]


def test_of_equal_scores_the_shallower_goes_first_then_the_one_asked_for_first() -> None:
    trip = played(BestFirstConfig(num_answers=10), lambda tree, node: 0.5)
    assert places(trip) == [ROOT, ROOT, 1, 1, 2, 2, 3, 3, 4, 4]


def test_children_of_one_answer_are_one_decision_way_by_way() -> None:
    config = BestFirstConfig(first_actions=("a", "b"), actions=("a+", "b+"), num_answers=4)
    trip = Journey(search(config), Answering())
    trip.step()
    asked = [command for event in trip.events if isinstance(event, Asked) for command in event.commands]
    assert [command.action for command in asked if isinstance(command, Grow)] == ["a", "a", "b", "b"]
    assert [(fork.rule, fork.num_siblings) for fork in trip.tree.forks] == [("best_first", 4)]


def test_with_several_at_work_each_is_the_best_of_those_known_when_there_was_room() -> None:
    config = BestFirstConfig(num_answers=16, num_samples=4, pops=2)
    trip = played(config, listed(0.2, 0.9, 0.4, 0.8, *([0.0] * 12)))
    assert places(trip) == [ROOT] * 4 + [1] * 4 + [2] * 4 + [4] * 4


def test_the_next_is_taken_as_soon_as_there_is_room() -> None:
    """The first answer that is scored is worked on while its siblings are still growing."""
    trip = Journey(search(BestFirstConfig(num_answers=6, pops=2)), Answering())
    for _ in range(4):
        trip.step()
    assert {c.node for c in trip.tree.pending.values() if isinstance(c, Grow)} <= {1, 2}
    assert places(trip.run())[2] in (1, 2)


def test_as_published_one_is_at_work_at_a_time() -> None:
    trip = Journey(search(BestFirstConfig(num_answers=20, pops=AS_PUBLISHED.pops)), Answering())
    while trip.step():
        heads = {c.node if isinstance(c, Grow) else trip.tree.parent(c.nodes[0]) for c in trip.tree.pending.values()}
        assert len(heads) <= 1


@pytest.mark.parametrize("seed", range(4))
def test_the_tree_does_not_depend_on_the_order_of_outcomes(seed: int) -> None:
    config = BestFirstConfig(num_samples=3, num_answers=20)
    expected = shape(journey(search(config), SeededWorld()).tree)
    trip = journey(search(config), SeededWorld(), order=random.Random(seed), delivery="eager")
    assert shape(trip.tree) == expected


def test_an_answer_without_a_score_never_waits_and_the_search_begins_anew_where_none_does() -> None:
    trip = played(BestFirstConfig(num_answers=8), listed(None, None, 0.5, None, None, None, 0.1, 0.1))
    assert places(trip) == [ROOT, ROOT, ROOT, ROOT, 3, 3, ROOT, ROOT]


def test_where_everything_fails_no_more_is_asked_than_planned() -> None:
    trip = journey(search(BestFirstConfig(num_answers=15)), Answering(), fails=lambda command_id: "engine_error")
    assert trip.driver.is_finished and places(trip) == [ROOT] * 15


def test_candidates_are_the_answers_with_scores_in_the_order_asked() -> None:
    trip = played(BestFirstConfig(num_answers=4, score_range=(0.0, 2.0)), listed(0.4, 1.0, None, 2.0))
    strategy = trip.driver.strategy
    assert isinstance(strategy, BestFirst)
    assert [(c.node, c.score) for c in strategy.candidates(trip.tree)] == [(1, 0.2), (2, 0.5), (4, 1.0)]


def test_the_viewer_is_told_the_best_that_wait() -> None:
    trip = played(BestFirstConfig(num_samples=9, num_answers=11), listed(*[i / 10 for i in range(9)], 0.0, 0.0))
    asked = (command for event in trip.events if isinstance(event, Asked) for command in event.commands)
    last = [command for command in asked if isinstance(command, Grow)][9]
    assert [(c.node, c.score) for c in last.why] == [(9, 0.8), (8, 0.7), (7, 0.6)]


@pytest.mark.parametrize("wrong", [{"num_samples": 0}, {"pops": 0}, {"num_answers": 0}, {"judge": "reward"}])
def test_an_impossible_configuration_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        BestFirstConfig(**wrong)
