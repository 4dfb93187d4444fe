"""Rules that choose nodes and leaves: what each returns, and that any of them can be plugged in."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.strategies.world import ListDraws, bare_tree, journey

from ramify import plugins
from ramify.core.errors import ConfigError
from ramify.core.tree import ROOT, Tree
from ramify.strategies.chains import Chains, ChainsConfig
from ramify.strategies.offline import Offline, OfflineConfig
from ramify.strategies.parts import choose, sample
from ramify.strategies.parts.draws import Draws, without_replacement
from ramify.strategies.parts.entropy import step_entropy


def grown() -> Tree:
    return journey(Chains(ChainsConfig(n=4), ListDraws())).tree


@pytest.mark.covers("S0.6")
@given(st.integers(0, 9), st.integers(0, 12), st.integers(0, 2**32))
def test_uniform_never_repeats_and_with_replacement_gives_k(num_items: int, k: int, seed: int) -> None:
    tree, items, rng = bare_tree(), list(range(num_items)), np.random.default_rng(seed)
    once = choose.uniform(tree, items, k, rng)
    assert len(once) == len(set(once)) == min(k, num_items)
    assert len(choose.uniform_with_replacement(tree, items, k, rng)) == (k if items else 0)
    assert set(once) <= set(items)


def test_uniform_draws_one_integer_for_each_node_and_every_order_is_possible() -> None:
    orders = {tuple(without_replacement("abc", 3, ListDraws(integers=[i, j, 0]))) for i in range(3) for j in range(2)}
    assert len(orders) == 6


@pytest.mark.covers("S0.6")
def test_entropy_takes_the_most_uncertain_first_and_unmeasured_nodes_last() -> None:
    tree = grown()
    nodes = tree.expandable()
    ranked = choose.entropy(tree, nodes, len(nodes), ListDraws())
    values = [step_entropy(tree, node) for node in ranked[:-1]]
    assert values == sorted(values, reverse=True)
    assert ranked[-1] == ROOT, "a node without the measure comes last"


def test_entropy_delta_is_zero_for_first_steps() -> None:
    tree = grown()
    nodes = tree.expandable()
    deltas = {n: step_entropy(tree, n) - step_entropy(tree, tree.path(n)[1]) for n in nodes if n != ROOT}
    best = choose.entropy_delta(tree, nodes, 1, ListDraws())[0]
    assert deltas[best] == max(deltas.values())


@pytest.mark.covers("S0.10")
def test_an_unknown_rule_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match="'entropy'"):
        choose.rule("entrpy")
    with pytest.raises(ConfigError, match="'uniform'"):
        plugins.find("sample", "unifrom")
    assert choose.rule("uniform") is choose.uniform
    assert plugins.find("sample", "uniform") is sample.uniform


@pytest.mark.covers("S0.10")
def test_a_rule_is_handed_in_with_its_name() -> None:
    def deepest(tree: Tree, candidates: Sequence[int], k: int, rng: Draws) -> list[int]:
        return sorted(candidates, key=tree.depth)[-k:]

    strategy = Offline(OfflineConfig(choose="my.py:deepest", expansion_iterations=1), ListDraws(), choose=deepest)
    tree = journey(strategy).tree
    assert tree.forks[1].rule == "my.py:deepest"
    assert tree.depth(tree.forks[1].node) >= max(tree.depth(stem) for stem in tree.stems())


@pytest.mark.covers("S0.7")
@given(st.lists(st.integers(0, 99), unique=True, max_size=9), st.integers(0, 12), st.integers(0, 2**32))
def test_sampled_leaves_keep_their_order_and_are_never_copied(leaves: list[int], n: int, seed: int) -> None:
    rows = sample.uniform(bare_tree(), leaves, n, np.random.default_rng(seed))
    kept = [leaf for leaf in rows if leaf is not None]
    assert len(rows) == n
    assert kept == [leaf for leaf in leaves if leaf in kept]
    assert len(kept) == min(n, len(leaves))


def test_the_plan_copies_leaves_in_order() -> None:
    assert sample.as_planned(bare_tree(), [4, 5], 5, ListDraws()) == [4, 5, 4, 5, 4]
    assert sample.as_planned(bare_tree(), [4, 5], 2, ListDraws(integers=[1, 0])) == [5, 4]
