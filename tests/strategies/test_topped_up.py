"""Fresh chains are added to a tree that has too few leaves, by any strategy's side, and its credit says so."""

import pickle
import random

import numpy as np
import pytest
from tests.credit.trees import end
from tests.strategies.world import Journey, SeededWorld, journey, shape

from ramify.core.command import ForkRecord
from ramify.core.errors import ConfigError
from ramify.core.limits import Limits
from ramify.core.stop import STOP_WORDS
from ramify.core.strategy import Strategy
from ramify.core.tree import Step, Tree
from ramify.rows import rows_of
from ramify.runner.driver import Start
from ramify.strategies.chains import Chains, ChainsConfig
from ramify.strategies.offline import AS_PUBLISHED, Offline, OfflineConfig
from ramify.strategies.online import Online, OnlineConfig
from ramify.strategies.parts.topped_up import ToppedUp


def chains(n: int, min_leaves: int) -> ToppedUp:
    return ToppedUp(Chains(ChainsConfig(n=n), np.random.default_rng(0)), min_leaves)


def inner(name: str) -> Strategy:
    rng = np.random.default_rng(0)
    if name == "offline":
        return Offline(OfflineConfig(), rng)
    return Online(OnlineConfig(n=5, initial_rollouts=2, restart="none"), rng)


def top_ups(tree: Tree) -> list[ForkRecord]:
    return [fork for fork in tree.forks if fork.rule == "top_up"]


class Dying(SeededWorld):
    """A world whose every path meets its end outside training."""

    def steps(self, tree: Tree, start: Start) -> list[Step]:
        return [end("x", None, "budget")]


def test_a_tree_with_leaves_enough_is_left_alone() -> None:
    alone = Chains(ChainsConfig(n=4), np.random.default_rng(0))
    assert shape(journey(chains(4, 4)).tree) == shape(journey(alone).tree)


def test_missing_leaves_are_made_up_by_fresh_chains() -> None:
    tree = journey(chains(2, 5)).tree
    assert tree.num_leaves == 5
    (fork,) = top_ups(tree)
    assert (fork.node, fork.num_siblings, fork.is_post_hoc) == (0, 3, True)


@pytest.mark.parametrize("name", ["offline", "online"])
def test_any_strategy_can_be_topped_up_whatever_ends_first(name: str) -> None:
    expected = journey(ToppedUp(inner(name), 14)).tree
    assert expected.num_leaves == 14
    for seed in range(4):
        trip = journey(ToppedUp(inner(name), 14), order=random.Random(seed))
        assert shape(trip.tree) == shape(expected)


def test_failed_chains_are_replaced() -> None:
    trip = journey(chains(4, 4), fails=lambda command: "engine_error" if command in (1, 2, 4) else None)
    assert trip.tree.num_leaves == 4
    assert [fork.num_siblings for fork in top_ups(trip.tree)] == [2, 1]


def test_chains_that_bring_nothing_are_not_tried_again() -> None:
    trip = journey(chains(2, 4), Dying())
    assert trip.driver.is_finished
    assert [fork.num_siblings for fork in top_ups(trip.tree)] == [4]


def test_a_strategy_that_finds_itself_done_when_it_is_asked_is_topped_up() -> None:
    plan = Offline(AS_PUBLISHED, np.random.default_rng(0))
    trip = journey(ToppedUp(plan, 8))
    assert trip.driver.is_finished and trip.tree.num_leaves == 8


@pytest.mark.parametrize("limits", [Limits(leaves=3), Limits(decode=40)])
def test_a_budget_that_is_used_up_ends_it(limits: Limits) -> None:
    trip = journey(chains(2, 50), limits=limits)
    assert trip.driver.is_finished
    for name, limit in limits.counted().items():
        assert getattr(trip.driver.ledger.spent, name) <= limit


def test_it_goes_on_the_same_after_pickling() -> None:
    trip = Journey(chains(2, 6), SeededWorld(prunes=True))
    while trip.step():
        trip.driver.strategy = pickle.loads(pickle.dumps(trip.driver.strategy))
    assert shape(trip.tree) == shape(journey(chains(2, 6), SeededWorld(prunes=True)).tree)


def test_its_trees_are_not_called_exact() -> None:
    strategy = chains(2, 3)
    rows = rows_of(journey(strategy).tree, post_hoc_reasons=(strategy.post_hoc_reason,))
    assert not any(row.is_unbiased for row in rows)
    assert all(STOP_WORDS[row.stop].is_trainable for row in rows)


def test_less_than_one_leaf_is_refused() -> None:
    with pytest.raises(ConfigError, match="min_leaves = 0"):
        chains(1, 0)
