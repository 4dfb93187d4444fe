"""A tree of the shape that was drawn for it, whatever its paths do."""

import random

import numpy as np
import pytest
from tests.strategies.planned_world import End, PlannedWorld, places
from tests.strategies.test_exact import PROCESSES, Decisions, expected_gradient
from tests.strategies.world import SeededWorld, journey, shape

from ramify.core.errors import ConfigError
from ramify.core.tree import ROOT, Tree
from ramify.credit import credit, forest_of
from ramify.strategies.planned import Planned, PlannedConfig


def planned(*children: float, seed: int = 0) -> Planned:
    return Planned(PlannedConfig(children), np.random.default_rng(seed))


def test_paths_fork_behind_each_step_and_then_grow_to_their_ends() -> None:
    tree = journey(planned(2, 3, 1, 2), PlannedWorld({})).tree
    assert [tree.depth(fork.node) for fork in tree.forks if fork.num_siblings > 1] == [0, 1, 1, *[3] * 6]
    assert tree.num_leaves == 12
    assert not any(fork.is_post_hoc for fork in tree.forks)


def test_a_number_between_whole_ones_is_a_coin() -> None:
    numbers = [len(journey(planned(2.3, seed=seed), PlannedWorld({})).tree.children(ROOT)) for seed in range(200)]
    assert set(numbers) == {2, 3}
    assert np.mean(numbers) == pytest.approx(2.3, abs=0.1)


def test_a_path_that_ends_early_is_a_leaf_and_what_was_planned_below_it_is_not_grown() -> None:
    tree = journey(planned(2, 2, 2), PlannedWorld({(0,): End(1.0), (1, 1): End(0.0)})).tree
    assert {places(tree, leaf) for leaf in tree.leaves()} == {(0,), (1, 1), (1, 0, 0), (1, 0, 1)}
    assert credit("auto", forest_of(tree)).is_unbiased


@pytest.mark.parametrize("seed", range(3))
def test_any_order_of_outcomes_grows_the_same_tree(seed: int) -> None:
    expected = shape(journey(planned(3, 1.5, 1.5), SeededWorld()).tree)
    assert shape(journey(planned(3, 1.5, 1.5), SeededWorld(), order=random.Random(seed)).tree) == expected


def test_a_failed_child_is_not_made_up_for() -> None:
    tree = journey(planned(2, 3), PlannedWorld({}), fails=lambda c: "engine_error" if c == 0 else None).tree
    assert tree.num_leaves == 3


@pytest.mark.slow
@pytest.mark.parametrize("name", PROCESSES)
@pytest.mark.parametrize("children", [(2, 2), (1.5, 2), (2, 1, 1.5), (2, 0.5), (1, 0.5, 1.5, 0.5), (1.5, 0.5, 2)])
def test_the_gradient_is_exact(name: str, children: tuple[float, ...]) -> None:
    process = Decisions(name)

    def make(draws: object) -> Planned:
        return Planned(PlannedConfig(children), draws)  # type: ignore[arg-type]

    assert expected_gradient(process, make, grid=2) == process.gradient


@pytest.mark.parametrize(
    "children", [(), (0.5,), (3, 0), (3, 0.01), (3, float("nan")), (4, 5000), (100, 100), (100, 0.1, 90, 90)]
)
def test_a_shape_that_grows_nothing_or_too_much_is_refused(children: tuple[float, ...]) -> None:
    with pytest.raises(ConfigError, match="planned: "):
        PlannedConfig(children)


def test_below_one_child_a_coin_ends_paths_and_the_others_count_for_them() -> None:
    trees = [journey(planned(20, 0.25, seed=seed), PlannedWorld({})).tree for seed in range(20)]
    ended = [leaf for tree in trees for leaf in tree.leaves() if tree.stop(leaf) == "roulette"]
    assert len(ended) == pytest.approx(300, abs=30)
    survivors = [fork for tree in trees for fork in tree.forks if fork.rule == "roulette"]
    assert {(fork.shares, fork.probability, fork.num_siblings) for fork in survivors} == {((4.0,), 0.25, 1)}
    assert len(survivors) + len(ended) == 400


def test_a_path_that_a_coin_ended_is_worth_nothing_and_leaves_the_credit_exact() -> None:
    tree = next(tree for tree in map(_coins, range(20)) if {"roulette", "answer"} <= stops(tree))
    forest = forest_of(tree)
    ended = [i for i in forest.leaves.tolist() if tree.stop(int(forest.nodes[i])) == "roulette"]
    assert forest.reward[ended].tolist() == [0.0] * len(ended)
    assert forest.caveats == ()
    assert credit("auto", forest).is_unbiased


def _coins(seed: int) -> Tree:
    return journey(planned(4, 0.5, seed=seed), PlannedWorld({(i, 0): End(1.0) for i in range(4)})).tree


def stops(tree: Tree) -> set[str | None]:
    return {tree.stop(leaf) for leaf in tree.leaves()}


def test_a_place_may_be_so_many_tokens_from_the_next() -> None:
    strategy = Planned(PlannedConfig((2, 3), segment_tokens=7), np.random.default_rng(0))
    tree = journey(strategy, PlannedWorld({})).tree
    assert [tree.num_sampled(stem) for stem in tree.stems()] == [7, 7]
    assert tree.num_leaves == 6
