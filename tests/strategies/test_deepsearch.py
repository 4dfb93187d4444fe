import math
import random
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from importlib.resources import files

import msgspec
import numpy as np
import pytest
from tests.strategies.planned_world import End, Places, PlannedWorld, ends_of, places
from tests.strategies.token_world import BareWorld
from tests.strategies.world import Journey, SeededWorld, journey, shape

from ramify.core.command import Grow, Tokens
from ramify.core.errors import ConfigError, ContractError
from ramify.core.limits import Limits
from ramify.core.tree import Step, Tree
from ramify.credit import forest_of
from ramify.credit.deepsearch import _Search
from ramify.runner.driver import Asked, Start
from ramify.strategies.deepsearch import AS_PUBLISHED, DeepSearch, DeepSearchConfig

WRONG, RIGHT = End(0.0), End(1.0)
BY_HAND: Mapping[Places, End] = {
    (0, 0): WRONG,
    (0, 1): RIGHT,
    (1, 1): WRONG,
    (1, 0, 0): End(0.0, logprob=-0.25),
    (1, 0, 1): WRONG,
}
"""Nothing ends at depth 1; then the first child's second child succeeds, and all else fails."""
SMALL = DeepSearchConfig(n=3, width=2, segment_tokens=2, max_depth=8)


def search(config: DeepSearchConfig = SMALL) -> DeepSearch:
    return DeepSearch(config, np.random.default_rng(0))


def expansions(trip: Journey) -> list[tuple[Places, str]]:
    """Where each expansion was, and by which rule."""
    return [(places(trip.tree, fork.node), fork.rule) for fork in trip.tree.forks]


def test_a_search_by_hand_goes_down_until_a_path_ends_then_to_the_best_segment_anywhere() -> None:
    trip = journey(search(), PlannedWorld(BY_HAND))
    assert expansions(trip) == [((), "root"), ((0,), "uct"), ((1,), "frontier"), ((1, 0), "frontier")]
    root, near = 1 / 3, 0.01 * math.sqrt(1 / 8)
    assert [fork.score for fork in trip.tree.forks][:3] == [None, 0.0, pytest.approx(0.4 * math.tanh(root) + near)]


def test_one_finished_child_an_expansion_is_backed_up_with_weights_that_grow_towards_its_end() -> None:
    strategy = search()
    tree = journey(strategy, PlannedWorld(BY_HAND)).tree
    stored = {places(tree, s.tip): (s.stored, s.visits, s.num_valued) for s in [strategy.root, *strategy.root.below()]}
    assert stored[()] == (pytest.approx(1 / 3), 3, 3)
    assert stored[0,] == (pytest.approx(2 / 3), 2, 1)
    assert stored[0, 0] == (0.0, 0, 0)
    assert stored[0, 1] == (1.0, 1, 1)
    assert stored[1,] == (pytest.approx(-2 / 3 - 1 / 2), 3, 2)
    assert stored[1, 0, 0] == (-1.0, 1, 1)
    assert stored[1, 0, 1] == (0.0, 0, 0)


def test_a_visit_without_a_value_dilutes_quality_as_published_only() -> None:
    strategy = search()
    journey(strategy, PlannedWorld(BY_HAND))
    first = strategy.root.children[0]
    assert (first.q("valued"), first.q("all")) == (pytest.approx(2 / 3), pytest.approx(1 / 3))


def test_the_search_ends_when_n_paths_are_backed_up() -> None:
    trip = journey(search(replace(SMALL, n=1)), PlannedWorld(BY_HAND))
    assert len(trip.tree.forks) == 2
    assert sorted(places(trip.tree, leaf) for leaf in trip.tree.leaves()) == [(0, 0), (0, 1)]


def test_the_search_ends_when_nothing_is_left_to_expand() -> None:
    trip = journey(search(replace(SMALL, n=9)), PlannedWorld({(0,): RIGHT, (1,): WRONG}))
    assert trip.driver.is_finished and len(trip.tree.forks) == 1


def test_children_of_the_last_level_grow_to_their_end_and_are_judged() -> None:
    trip = journey(search(replace(SMALL, max_depth=2)), PlannedWorld({}))
    commands = [c for event in trip.events if isinstance(event, Asked) for c in event.commands]
    assert [c.until for c in commands if isinstance(c, Grow)] == [Tokens(2)] * 2 + ["end"] * 4
    assert all(trip.tree.reward(leaf) == 0.0 for leaf in trip.tree.leaves())


def test_fresh_children_score_alike_so_that_the_first_is_taken() -> None:
    trip = journey(search(), PlannedWorld({}))
    assert expansions(trip)[1] == ((0,), "uct")


def test_one_expansion_is_in_flight_at_a_time() -> None:
    trip = Journey(search(), PlannedWorld(BY_HAND))
    while trip.step():
        assert len({c.node for c in trip.tree.pending.values() if isinstance(c, Grow)}) <= 1


@pytest.mark.parametrize("seed", range(4))
def test_any_order_of_outcomes_grows_the_same_tree(seed: int) -> None:
    config = replace(SMALL, n=6, width=3)
    expected = shape(journey(search(config), SeededWorld()).tree)
    trip = journey(search(config), SeededWorld(), order=random.Random(seed), delivery="eager")
    assert shape(trip.tree) == expected


def test_a_failed_child_is_dropped_and_the_expansion_goes_on_without_it() -> None:
    trip = journey(search(), PlannedWorld(BY_HAND), fails=lambda c: "engine_error" if c in (0, 3) else None)
    assert expansions(trip)[:2] == [((), "root"), ((1,), "uct")]
    assert trip.driver.is_finished and set(ends_of(trip.tree)) == {(1,), (1, 0), (1, 0, 0), (1, 0, 1)}


def test_a_search_whose_first_children_all_fail_ends() -> None:
    trip = journey(search(), PlannedWorld(BY_HAND), fails=lambda c: "engine_error")
    assert trip.driver.is_finished and trip.driver.growth.num_asked == 2


def test_a_budget_ends_the_search() -> None:
    trip = journey(search(replace(SMALL, n=50)), SeededWorld(), limits=Limits(decode=40))
    assert trip.driver.is_finished and trip.driver.ledger.spent.decode <= 40


def test_paths_that_were_cut_from_outside_or_not_judged_are_never_backed_up() -> None:
    strategy = search()
    journey(strategy, PlannedWorld({(0,): End(None), (1,): End(1.0, stop="deadline")}))
    assert strategy.root.stored == 0.0 and strategy.root.visits == 0


class Unjudged(PlannedWorld):
    """A world in which no judge says anything."""

    def steps(self, tree: Tree, start: Start) -> list[Step]:
        return [replace(step, scores=()) for step in super().steps(tree, start)]


def test_a_search_whose_paths_nobody_judges_ends_after_n_expansions_of_which_one_finished() -> None:
    tree = journey(search(replace(SMALL, n=2, width=3, max_depth=5)), Unjudged({})).tree
    assert len({tree.parent(leaf) for leaf in tree.leaves()}) == 2


def test_rewards_of_a_judge_that_saw_the_answer_steer_the_search_only_where_that_is_declared() -> None:
    world = PlannedWorld({(0,): End(1.0, is_oracle=True)})
    with pytest.raises(ContractError, match=r"saw the answer.*oracle = 'declared'"):
        journey(search(), world)
    tree = journey(search(replace(SMALL, oracle="declared", n=1)), world).tree
    assert tree.scores(tree.leaves()[0])[0].is_oracle


def test_an_engine_without_logprobs_is_refused() -> None:
    with pytest.raises(ContractError, match="no logprobs"):
        journey(search(), BareWorld())


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("num_steps", [1, 2])
def test_the_credit_works_out_what_the_search_had_stored(seed: int, num_steps: int) -> None:
    rng = np.random.default_rng(seed)
    ends = {
        tuple(map(int, path)): End(float(rng.integers(2)), -float(rng.exponential()))
        for length in (1, 2, 3, 4)
        for path in np.ndindex(*[3] * length)
        if rng.random() < 0.3
    }
    strategy = search(DeepSearchConfig(n=5, width=3, segment_tokens=2, max_depth=4))
    tree = journey(strategy, PlannedWorld(ends, num_steps=num_steps)).tree
    forest = forest_of(tree, measures=["mean_surprisal"])
    again = _Search(forest)
    segments = {segment.tip: segment for segment in strategy.root.below()}
    for node, stored in zip(forest.nodes.tolist(), again.stored, strict=True):
        assert node not in segments or stored == pytest.approx(segments[node].stored)
    backed_up = [tip for tip, segment in segments.items() if segment.value is not None and segment.visits]
    assert sorted(forest.nodes[again.chosen].tolist()) == sorted(backed_up)


@pytest.mark.parametrize(
    ("name", "config"),
    [("deepsearch", replace(AS_PUBLISHED, divisor="valued")), ("deepsearch_as_published", AS_PUBLISHED)],
)
def test_a_preset_is_a_set_of_values(name: str, config: DeepSearchConfig) -> None:
    preset = tomllib.loads(files("ramify").joinpath("presets", f"{name}.toml").read_text(encoding="utf-8"))
    assert msgspec.convert(preset["strategy"]["options"], DeepSearchConfig) == config
    assert preset["growth"]["max_response_tokens"] == config.segment_tokens * config.max_depth


@pytest.mark.parametrize("field", ["n", "width", "segment_tokens", "max_depth"])
def test_numbers_below_one_are_refused(field: str) -> None:
    with pytest.raises(ConfigError, match="at least 1"):
        replace(SMALL, **{field: 0})
