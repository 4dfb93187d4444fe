"""Trees that fork while they grow: ARPO's and AEPO's rules within a budget of paths."""

import random
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.strategies.world import Journey, ListDraws, SeededWorld, bare_tree, journey, sampled_step, shape, varied

from ramify.core.errors import ConfigError, ContractError
from ramify.core.tree import ROOT, Step, Tree
from ramify.runner.driver import Asked, Start
from ramify.strategies.online import AEPO_AS_PUBLISHED, ARPO_AS_PUBLISHED, Online, OnlineConfig, OnlinePublished

CONFIGS = st.builds(
    partial(varied, OnlineConfig()),
    n=st.integers(1, 12),
    initial_rollouts=st.one_of(st.integers(1, 6), st.just("dynamic")),
    beam_size=st.integers(1, 4),
    rule=st.sampled_from(["arpo", "aepo"]),
    branch_probability=st.sampled_from([0.2, 0.5, 0.9]),
    rounds=st.sampled_from(["lockstep", "free"]),
    restart=st.sampled_from(["one", "all", "none"]),
    baseline=st.sampled_from(["own", "inherited"]),
    counter=st.just("path"),
    order=st.sampled_from(["age", "shuffle"]),
    probes=st.sampled_from(["keep", "discard"]),
)


def online(seed: int = 0, **config: object) -> Online:
    return Online(varied(OnlineConfig(), **config), np.random.default_rng(seed))  # type: ignore[arg-type]


@pytest.mark.covers("S0.8")
@given(CONFIGS, st.integers(0, 99))
def test_paths_never_exceed_n_and_reach_it_with_restarts(config: OnlineConfig, seed: int) -> None:
    tree = journey(Online(config, np.random.default_rng(seed)), tree=bare_tree(seed)).tree
    assert tree.num_leaves <= config.n
    if config.restart != "none":
        assert tree.num_leaves == config.n


@given(CONFIGS, st.integers(0, 99))
def test_forks_are_predictable_unless_chains_are_restarted(config: OnlineConfig, seed: int) -> None:
    config = replace(config, restart="none", initial_rollouts=2)
    tree = journey(Online(config, np.random.default_rng(seed)), tree=bare_tree(seed)).tree
    assert not any(fork.is_post_hoc for fork in tree.forks)
    assert all(fork.probability is not None and 0 < fork.probability <= 1 for fork in tree.forks[1:])


@pytest.mark.covers("S0.8")
def test_leftover_slots_start_fresh_chains_one_at_a_time_all_at_once_or_never() -> None:
    def restarts(restart: str) -> list[int]:
        tree = journey(online(initial_rollouts=2, n=6, beam_size=1, restart=restart)).tree
        return [fork.num_siblings for fork in tree.forks if fork.rule == "restart"]

    assert restarts("one") == [1, 1, 1, 1]
    assert restarts("all") == [4]
    assert restarts("none") == []


def test_restarts_are_post_hoc() -> None:
    tree = journey(online(initial_rollouts=2, n=6, beam_size=1)).tree
    assert [fork.is_post_hoc for fork in tree.forks] == [False, True, True, True, True]


def test_a_path_and_its_branches_are_children_of_one_decision() -> None:
    tree = journey(online(beam_size=3, n=12, initial_rollouts=2)).tree
    for fork in tree.forks[1:]:
        children = [node for node in tree.children(fork.node) if tree.fork(node) is fork]
        assert len(children) == fork.num_siblings
        assert len(children) == len(tree.children(fork.node)) or fork.node == ROOT


def test_a_fork_records_the_probability_of_just_so_many_children() -> None:
    """Two attempts at P = 1/2: one child more has 1/2, two more have 1/4."""
    config = OnlineConfig(n=9, initial_rollouts=1, beam_size=3, entropy_weight=0.0, restart="none")
    tree = journey(Online(config, ListDraws([0.4, 0.6, 0.4, 0.4, 0.6, 0.6])), ThreeSteps(1.0, 1.0, 1.0)).tree
    assert [(fork.num_siblings, fork.probability) for fork in tree.forks[1:]] == [(2, 0.5), (3, 0.25)]


class ThreeSteps:
    """Every path makes three steps; the n-th step of a path has the n-th entropy."""

    def __init__(self, *entropies: float) -> None:
        self._entropies = entropies

    def steps(self, tree: Tree, start: Start) -> list[Step]:
        assert start.place is not None
        depth = tree.depth(start.place.parent)
        return [sampled_step(1, entropy=self._entropies[depth], stop="answer" if depth == 2 else None)]


@pytest.mark.parametrize(("baseline", "num_paths"), [("own", 3), ("inherited", 4)])
def test_a_branch_is_compared_with_its_source_or_with_itself(baseline: str, num_paths: int) -> None:
    """One path forks after its first step; after the second only what rose over the first step's entropy forks."""
    config = OnlineConfig(n=9, initial_rollouts=1, restart="none", published=OnlinePublished(baseline=baseline))  # type: ignore[arg-type]
    draws = ListDraws([0.4, 0.6, 0.6])
    assert journey(Online(config, draws), ThreeSteps(1.0, 2.0, 0.0)).tree.num_leaves == num_paths


def test_stale_baselines_win_over_own_ones() -> None:
    config = replace(ARPO_AS_PUBLISHED, n=2, initial_rollouts=1, restart="none")
    fresh = journey(Online(config, ListDraws([0.6, 0.9])), ThreeSteps(1.0, 1.0, 1.0)).tree
    stale = varied(config, stale_baselines=((0, 0.0),))
    assert fresh.num_leaves == 1
    assert journey(Online(stale, ListDraws([0.6])), ThreeSteps(1.0, 1.0, 1.0)).tree.num_leaves == 2


@pytest.mark.parametrize(("counter", "expected"), [("created", 1), ("forks", 0)])
def test_the_published_counter_never_resets_within_a_tree(counter: str, expected: int) -> None:
    config = replace(AEPO_AS_PUBLISHED, n=9, initial_rollouts=1, counter=counter, restart="none")  # type: ignore[arg-type]
    strategy = Online(config, ListDraws([0.9, 0.1, 0.1]))
    journey(strategy, ThreeSteps(1.0, 1.0, 1.0))
    assert strategy.consecutive == expected


def test_a_path_that_forks_again_and_again_is_penalised_by_its_own_counter() -> None:
    """AEPO at dH = 0 and bp = .5 forks from u >= .5, and after one fork of the path from u >= .5 / .95."""
    config = OnlineConfig(n=9, initial_rollouts=1, rule="aepo", counter="path", rounds="free", restart="none")
    tree = journey(Online(config, ListDraws([0.51, 0.52, 0.52])), ThreeSteps(1.0, 1.0, 1.0)).tree
    assert tree.num_leaves == 2


@pytest.mark.parametrize("order", ["age", "shuffle"])
def test_scarce_slots_go_to_the_oldest_paths_unless_shuffled(order: str) -> None:
    def first_to_fork(seed: int) -> int:
        strategy = online(seed, n=9, initial_rollouts=8, branch_probability=1.0, entropy_weight=0.0, order=order)
        tree = journey(strategy, ThreeSteps(1.0, 1.0, 1.0)).tree
        return tree.index(tree.forks[1].node)

    first = {first_to_fork(seed) for seed in range(8)}
    assert first == {0} if order == "age" else len(first) > 2


def test_lockstep_asks_a_round_at_a_time_and_free_does_not_wait() -> None:
    def asks(rounds: str) -> list[int]:
        trip = journey(online(rounds=rounds, n=8, initial_rollouts=4, restart="none"), ThreeSteps(1.0, 1.0, 1.0))
        return [len(event.commands) for event in trip.events if isinstance(event, Asked)]

    assert len(asks("lockstep")) == 3
    assert max(asks("free")[1:]) <= 2


def test_free_paths_that_can_fork_no_more_run_to_their_ends() -> None:
    trip = journey(online(rounds="free", n=4, initial_rollouts=4))
    commands = [command for event in trip.events if isinstance(event, Asked) for command in event.commands]
    assert [command.until for command in commands] == ["end"] * 4


@settings(max_examples=25)
@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_without_shortage_both_rounds_grow_the_same_tree(tree_seed: int, order: int) -> None:
    """With every draw alike and slots to spare, when a path decides makes no difference."""

    class Constant(ListDraws):
        def random(self) -> float:
            return 0.45

    def tree(rounds: str) -> Tree:
        config = OnlineConfig(n=10_000, initial_rollouts=3, restart="none", rounds=rounds)  # type: ignore[arg-type]
        strategy = Online(config, Constant())
        return journey(strategy, tree=bare_tree(tree_seed), delivery="eager", order=random.Random(order)).tree

    assert shape(tree("lockstep")) == shape(tree("free"))


def test_a_failed_path_is_dropped_and_its_slot_not_refilled() -> None:
    trip = journey(
        online(n=8, initial_rollouts=4, restart="none", beam_size=1),
        fails=lambda command_id: "engine_error" if command_id == 1 else None,
    )
    assert trip.tree.num_leaves == 3


def test_a_refused_command_ends_forks_and_restarts() -> None:
    trip = journey(online(n=50, initial_rollouts=4), fails=lambda command_id: "budget" if command_id == 6 else None)
    assert trip.driver.growth.num_asked < 40
    assert trip.driver.is_finished


def test_a_step_without_the_measure_is_refused() -> None:
    class Unmeasured(SeededWorld):
        def steps(self, tree: Tree, start: Start) -> list[Step]:
            return [replace(step, measures={}) for step in super().steps(tree, start)]

    with pytest.raises(ContractError, match="step_entropy_topk"):
        journey(online(), Unmeasured())


@pytest.mark.covers("S0.9")
def test_phases_go_from_build_to_collection() -> None:
    strategy = online()
    trip = Journey(strategy)
    names = [strategy.phase(trip.tree).name]
    while trip.step():
        names.append(strategy.phase(trip.tree).name)
    assert list(dict.fromkeys(names)) == ["build", "initial chains", "expansion", "collection"]


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match="at least 1"):
        OnlineConfig(n=0)
    with pytest.raises(ConfigError, match="'path'"):
        OnlineConfig(rule="aepo", rounds="free")
