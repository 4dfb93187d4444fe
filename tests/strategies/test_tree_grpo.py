"""Tree-GRPO: every tree of a prompt draws its own nodes, the bare prompt among them."""

from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.golden.files import load
from tests.golden.rollouts import ChainsWorld, labels_of
from tests.strategies.test_exact import Decisions, equal_weight, expected_gradient
from tests.strategies.world import Journey, ListDraws, bare_tree, journey, shape

from ramify.core.errors import ConfigError
from ramify.core.stems import tree_number
from ramify.core.tree import ROOT, Tree
from ramify.strategies.parts.sample import per_tree
from ramify.strategies.tree_grpo import TreeGRPO, TreeGRPOConfig, expansion_candidates


def tree_grpo(seed: int = 0, **config: int) -> TreeGRPO:
    return TreeGRPO(TreeGRPOConfig(**config), np.random.default_rng(seed))


def trees_of(tree: Tree) -> list[int]:
    """Number of the tree of each leaf."""
    return [tree_number(tree, tree.path(leaf)[1]) for leaf in tree.leaves()]


@given(
    m=st.integers(1, 4), n=st.integers(1, 4), rounds=st.integers(0, 3), seed=st.integers(0, 99)
)  # fmt: skip
def test_every_tree_has_one_leaf_and_n_more_a_round(m: int, n: int, rounds: int, seed: int) -> None:
    tree = journey(tree_grpo(seed, num_trees=m, num_nodes=n, num_rounds=rounds), tree=bare_tree(seed)).tree
    assert Counter(trees_of(tree)) == dict.fromkeys(range(m), 1 + n * rounds)
    assert [fork.is_post_hoc for fork in tree.forks] == [False] + [True] * (m * n * rounds)


def test_the_tree_by_hand() -> None:
    """Tree 0 (3 steps) draws its root and its step 0.1, tree 1 (2 steps) its step 1.0 twice; then 0 may draw 2.0."""
    draws = ListDraws(integers=[0, 2, 1, 1, *[3, 0], *[0, 0]])
    config = TreeGRPOConfig(num_rounds=2)
    tree = journey(TreeGRPO(config, draws), ChainsWorld([3, 2, 2, 1, 1, 2, 1, 1, 1, 1])).tree
    labels = labels_of(tree)
    parents = {labels[node]: labels[tree.path(node)[-2]] for node in range(1, len(tree))}
    first_round = {"2.0": "root", "3.0": "0.1", "4.0": "1.0", "5.0": "1.0"}
    second_round = {"6.0": "0.1", "7.0": "root", "8.0": "root", "9.0": "root"}
    assert {label: parents[label] for label in (*first_round, *second_round)} == first_round | second_round
    stems = {labels[stem]: tree_number(tree, stem) for stem in tree.stems()}
    assert stems == {"0.0": 0, "1.0": 1, "2.0": 0, "7.0": 0, "8.0": 1, "9.0": 1}
    candidates = [[labels[node] for node in nodes] for nodes in expansion_candidates(tree, 2)]
    assert candidates == [["root", "0.0", "2.0", "0.1"], ["root", "1.0", "5.0"]]
    assert tree.forks[1].rule == "tree_grpo/0"
    assert (tree.forks[2].rule, tree.forks[2].probability) == ("tree_grpo", 1 / 3)


def test_a_tree_whose_chain_failed_grows_from_its_root() -> None:
    tree = journey(tree_grpo(num_rounds=2), fails=lambda command_id: "engine_error" if command_id == 0 else None).tree
    assert Counter(trees_of(tree)) == {0: 4, 1: 5}


def test_a_failed_continuation_is_not_replaced() -> None:
    tree = journey(tree_grpo(num_rounds=2), fails=lambda command_id: "engine_error" if command_id == 3 else None).tree
    assert tree.num_leaves == 9


def test_a_refused_continuation_ends_the_rounds() -> None:
    trip = journey(tree_grpo(num_rounds=5), fails=lambda command_id: "budget" if command_id == 4 else None)
    assert trip.driver.growth.num_asked == 6
    assert trip.driver.is_finished


def test_without_rounds_the_trees_are_predictable_chains() -> None:
    strategy = tree_grpo(num_trees=3, num_rounds=0)
    assert strategy.post_hoc_reason == ""
    assert len(journey(strategy).tree.forks) == 1
    assert tree_grpo().post_hoc_reason


def test_phases_name_build_chains_expansion_and_collection() -> None:
    strategy = tree_grpo(num_rounds=2)
    trip = Journey(strategy)
    seen = [strategy.phase(trip.tree)]
    while trip.step():
        if (phase := strategy.phase(trip.tree)) != seen[-1]:
            seen.append(phase)
    names = [(phase.name, phase.round) for phase in seen]
    assert names == [("build", 0), ("initial chains", 0), ("expansion", 1), ("expansion", 2), ("collection", 2)]


def test_k_leaves_of_every_tree_become_rows() -> None:
    tree = journey(tree_grpo(num_trees=3, num_nodes=4)).tree
    kept = per_tree(tree, tree.leaves(), 6, np.random.default_rng(0))
    of_leaf = dict(zip(tree.leaves(), trees_of(tree), strict=True))
    assert Counter(of_leaf[leaf] for leaf in kept if leaf is not None) == {0: 2, 1: 2, 2: 2}
    assert per_tree(tree, tree.leaves()[:2], 4, np.random.default_rng(0)) == [*tree.leaves()[:2], None, None]
    assert per_tree(tree, [], 2, np.random.default_rng(0)) == [None, None]


@pytest.mark.parametrize(("problem", "is_exact"), [("ragged", False), ("binary3", True), ("ternary2", True)])
def test_one_tree_and_one_draw_have_the_expectation_of_the_uniform_node_rule(problem: str, is_exact: bool) -> None:
    """Uniform choice of realised nodes is biased if paths differ in length (`docs/concepts/exactness.md`, lemma 4)."""
    process = Decisions(f"gradients_{problem}")
    config = TreeGRPOConfig(num_trees=1, num_nodes=1)
    found = expected_gradient(process, lambda draws: TreeGRPO(config, draws), weigh=equal_weight)
    schemes = {scheme["id"]: scheme for scheme in load(f"gradients_{problem}")["schemes"]}
    exact = schemes["uniform_node_equal/split"]["exact"]
    assert found == {(at, b): Fraction(x) for at, law in exact.items() for b, x in enumerate(law)}
    assert (found == process.gradient) is is_exact


def test_the_same_draws_grow_the_same_tree() -> None:
    assert shape(journey(tree_grpo(3)).tree) == shape(journey(tree_grpo(3)).tree)
    assert ROOT in {fork.node for fork in journey(tree_grpo(3, num_nodes=9)).tree.forks[1:]}


def test_impossible_numbers_are_refused() -> None:
    with pytest.raises(ConfigError, match="at least 1"):
        TreeGRPOConfig(num_nodes=0)
