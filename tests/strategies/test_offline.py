"""The offline plan: chains, then rounds of expansion; and its forks drawn beforehand."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.strategies.world import Journey, ListDraws, SeededWorld, bare_tree, journey, varied

from ramify.core.errors import ConfigError
from ramify.core.growth import Done
from ramify.core.tree import ROOT, Tree
from ramify.runner.driver import Driver
from ramify.strategies.offline import AS_PUBLISHED, Offline, OfflineConfig


def offline(seed: int = 0, **config: object) -> Offline:
    return Offline(varied(OfflineConfig(), **config), np.random.default_rng(seed))  # type: ignore[arg-type]


@pytest.mark.covers("S0.6")
@given(
    m=st.integers(1, 5), beam=st.integers(1, 4), rounds=st.integers(0, 3), k=st.integers(1, 3), seed=st.integers(0, 99)
)
def test_leaves_are_initial_plus_new_ones_of_every_round(m: int, beam: int, rounds: int, k: int, seed: int) -> None:
    strategy = offline(
        seed,
        initial_rollouts=m,
        beam_size=beam,
        expansion_iterations=rounds,
        expansion_nodes=k,
        choose="uniform_with_replacement",
    )
    tree = journey(strategy, tree=bare_tree(seed)).tree
    assert tree.num_leaves == m + rounds * k * (beam - 1)
    assert [fork.num_siblings for fork in tree.forks[1:]] == [beam - 1] * (rounds * k if beam > 1 else 0)


def test_without_replacement_chooses_no_node_twice_in_a_round() -> None:
    tree = journey(offline(expansion_nodes=50, expansion_iterations=1)).tree
    places = [fork.node for fork in tree.forks[1:]]
    assert len(places) == len(set(places)) > 3


def test_forks_chosen_after_the_chains_are_post_hoc_and_say_so() -> None:
    tree = journey(offline()).tree
    assert [fork.is_post_hoc for fork in tree.forks] == [False, True, True]


def test_a_chosen_node_is_not_run_again() -> None:
    tree = journey(offline(expansion_iterations=4)).tree
    spent = sum(spend.turns for spend in tree.spent().values())
    assert spent == len(tree) - 1, "one generation a node"


@pytest.mark.parametrize("rule", ["entropy", "entropy_delta"])
def test_entropy_rules_draw_nothing(rule: str) -> None:
    strategy = Offline(OfflineConfig(choose=rule), ListDraws())
    assert strategy.measures == {"step_entropy_topk"}
    assert journey(strategy).tree.num_leaves == 5


def test_uniform_choice_needs_no_measure() -> None:
    assert offline().measures == frozenset()
    assert offline(initial_rollouts="dynamic").measures == {"step_entropy_topk"}


def test_as_published_every_leaf_grows_from_the_bare_prompt() -> None:
    tree = journey(Offline(AS_PUBLISHED, np.random.default_rng(0))).tree
    assert tree.num_leaves == len(tree.stems()) == 5
    assert {fork.node for fork in tree.forks} == {ROOT}


@given(st.integers(0, 200))
def test_forks_committed_to_before_are_predictable(seed: int) -> None:
    strategy = offline(seed, commit="before", initial_rollouts=3, beam_size=3, expansion_iterations=3)
    tree = journey(strategy, tree=bare_tree(seed)).tree
    assert not any(fork.is_post_hoc for fork in tree.forks)
    assert len(tree.forks) <= 4
    for leaf in tree.leaves():
        shares = [share(tree, node) for node in tree.path(leaf)[1:]]
        assert 0 < np.prod(shares) <= 1
    assert sum(np.prod([share(tree, n) for n in tree.path(leaf)[1:]]) for leaf in tree.leaves()) == pytest.approx(1)


def share(tree: Tree, node: int) -> float:
    """Planned share of a node at the decision that made it."""
    fork = tree.fork(node)
    siblings = [n for n in tree.children(tree.path(node)[-2]) if tree.fork(n) is fork]
    return fork.shares[siblings.index(node)] if fork else 1.0


def test_a_chain_forks_at_the_depths_drawn_and_not_if_it_ended_before() -> None:
    draws = ListDraws(integers=[0, 1, 1, 3])
    config = OfflineConfig(commit="before", initial_rollouts=2, expansion_iterations=2)
    tree = journey(Offline(config, draws), tree=bare_tree(0)).tree
    depths = [tree.depth(stem) + _chain_length(tree, stem) - 1 for stem in tree.stems()]
    expected = [depth for depth, length in zip((1, 3), depths, strict=True) if length > depth]
    assert sorted(tree.depth(fork.node) for fork in tree.forks[1:]) == expected


def _chain_length(tree: Tree, stem: int) -> int:
    """Steps of the path that goes on with first children."""
    length = 1
    while children := tree.children(stem):
        stem, length = children[0], length + 1
    return length


def test_depth_zero_is_one_more_chain_of_the_first_decision() -> None:
    config = OfflineConfig(commit="before", initial_rollouts=2, expansion_iterations=1, beam_size=4)
    tree = journey(Offline(config, ListDraws(integers=[1, 0]))).tree
    assert [(fork.node, fork.num_siblings) for fork in tree.forks] == [(ROOT, 5)]


def test_two_forks_committed_to_at_one_place_are_one_decision() -> None:
    config = OfflineConfig(commit="before", initial_rollouts=1, expansion_iterations=2)
    tree = journey(Offline(config, ListDraws(integers=[0, 1, 0, 1])), tree=bare_tree(4)).tree
    assert [fork.num_siblings for fork in tree.forks] == [1, 3]


@pytest.mark.covers("S0.2")
def test_the_probe_that_says_how_many_chains_there_are_is_the_first_of_them() -> None:
    tree = journey(offline(initial_rollouts="dynamic", expansion_iterations=0, n=8)).tree
    assert [fork.rule for fork in tree.forks] == ["initial", "initial"]
    assert tree.num_leaves == sum(fork.num_siblings for fork in tree.forks) <= 8
    assert {tree.role(node) for node in tree.subtree()} == {"policy"}


def test_probes_thrown_away_are_no_leaves() -> None:
    tree = journey(offline(initial_rollouts="dynamic", probes="discard", expansion_iterations=0, n=8)).tree
    probes = [node for node in tree.subtree() if tree.role(node) == "probe"]
    assert tree.num_sampled(probes[0]) == 50
    assert tree.num_leaves == tree.forks[1].num_siblings
    assert not any(tree.is_leaf(node) for node in probes)


@pytest.mark.parametrize("probes", ["keep", "discard"])
def test_probes_that_fail_leave_half_of_n_and_probes_refused_leave_none(probes: str) -> None:
    def number(reason: str) -> int:
        strategy = offline(initial_rollouts="dynamic", probes=probes, expansion_iterations=0, n=8)
        num_probes = 1 if probes == "keep" else 2
        return journey(strategy, fails=lambda command_id: reason if command_id < num_probes else None).tree.num_leaves

    assert number("engine_error") == 4
    assert number("budget") == 0


@pytest.mark.covers("S0.9")
def test_phases_name_build_initial_chains_expansion_and_collection() -> None:
    strategy = offline(expansion_iterations=2)
    trip = Journey(strategy)
    seen = [strategy.phase(trip.tree)]
    while trip.step():
        if (phase := strategy.phase(trip.tree)) != seen[-1]:
            seen.append(phase)
    names = [(phase.name, phase.round) for phase in seen]
    assert names == [("build", 0), ("initial chains", 0), ("expansion", 1), ("expansion", 2), ("collection", 2)]


def test_nothing_left_to_choose_ends_the_rounds() -> None:
    tree = bare_tree()
    strategy = offline(chosen="grow", candidates="chains", expansion_iterations=5)
    driver = Driver(tree, strategy)
    world = SeededWorld()
    while not driver.is_finished:
        for start in driver.pump().starts:
            for step in world.steps(tree, start):
                driver.grew(start.command_id, step)
            driver.ended(start.command_id, Done())
    assert tree.num_leaves == 5
    assert strategy.phase(tree).round == 1


def test_impossible_plans_are_refused() -> None:
    with pytest.raises(ConfigError, match="at least 1"):
        OfflineConfig(beam_size=0)
    with pytest.raises(ConfigError, match="'dynamic'"):
        OfflineConfig(commit="before", initial_rollouts="dynamic")
    with pytest.raises(ConfigError, match="did you mean"):
        OfflineConfig(choose="unifrom")
    assert replace(AS_PUBLISHED, n=2).n == 2
