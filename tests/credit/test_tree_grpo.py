"""Tree-GRPO's credit: a leaf against its prompt and against its tree, whichever stems the tree has."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.credit.trees import bare, end, fork, step, wild

from ramify.core.stems import joining
from ramify.core.tree import ROOT, Tree
from ramify.credit import credit, forest_of, group_advantages, leaf_grpo, tree_grpo
from ramify.credit.tree_grpo import tree_advantages, tree_grpo_leaves, tree_grpo_published_leaves
from ramify.rows import rows_of


def two_trees() -> Tree:
    """Tree 0: leaves 1, 0, 0, the last from the bare prompt; tree 1: leaves 0, 0, 1 below one step."""
    growth = bare()
    one, two = fork(growth, ROOT, [step("a")], [step("b")])
    fork(growth, one, [end("c", 1.0)], [end("d", 0.0)])
    fork(growth, two, [end("e", 0.0)], [end("f", 0.0)], [end("g", 1.0)])
    fork(growth, ROOT, [end("h", 0.0)], rule=joining("tree_grpo", 0))
    return growth.tree


def test_a_path_from_the_bare_prompt_counts_with_the_tree_that_drew_it() -> None:
    forest = forest_of(two_trees())
    expected = {1.0: 2.445693, 0.0: -1.222846}
    assert tree_grpo_leaves(forest).tolist() == pytest.approx([expected[r] for r in forest.rewards], abs=1e-5)
    assert tree_grpo_leaves(replace(forest, tree=None)).tolist() != pytest.approx(tree_grpo_leaves(forest).tolist())


def test_a_token_gets_the_sum_of_its_leaves_over_their_number() -> None:
    forest = forest_of(two_trees())
    advantages = tree_grpo_leaves(forest)
    for node in range(len(forest)):
        below = [a for leaf, a in zip(forest.leaves, advantages, strict=True) if node in _path(forest.parent, leaf)]
        assert tree_grpo(forest)[node] == pytest.approx(sum(below) / 6)


def _path(parent: np.ndarray, leaf: int) -> list[int]:
    path = [int(leaf)]
    while parent[path[-1]] >= 0:
        path.append(int(parent[path[-1]]))
    return path


@given(st.lists(st.sampled_from([0.0, 1.0, 0.3]), min_size=1, max_size=8))
def test_one_tree_doubles_grpo_and_trees_of_one_leaf_are_grpo(rewards: list[float]) -> None:
    values = np.array(rewards)
    plain = group_advantages(values, "grpo")
    over, within = tree_advantages(values, np.zeros(len(values), np.int32))
    assert (over + within).tolist() == (2 * plain).tolist()
    over, within = tree_advantages(values, np.arange(len(values), dtype=np.int32))
    assert (over.tolist(), within.any()) == (plain.tolist(), False)


def test_equal_rewards_say_exactly_nothing() -> None:
    over, within = tree_advantages(np.full(7, 0.1 + 0.2), np.array([0, 0, 0, 1, 1, 1, 2], np.int32))
    assert not over.any()
    assert not within.any()


def test_chains_are_credited_as_by_grpo() -> None:
    growth = bare()
    fork(growth, ROOT, [end("a", 1.0)], [end("b", 0.0)], [end("c", 0.5)])
    forest = forest_of(growth.tree)
    assert tree_grpo(forest).tolist() == leaf_grpo(forest).tolist()


def test_as_published_only_the_rows_are_compared() -> None:
    tree = two_trees()
    forest = forest_of(tree)
    kept = [int(forest.nodes[leaf]) for leaf in forest.leaves[[0, 1, 2, 4]]]
    selected = forest_of(tree, selected=kept)
    rewards, trees = forest.rewards[[0, 1, 2, 4]], selected.tree[forest.leaves[[0, 1, 2, 4]]]  # type: ignore[index]
    over, within = tree_advantages(rewards, trees, mode="as_published")
    assert tree_grpo_published_leaves(selected)[[0, 1, 2, 4]].tolist() == (over + within).tolist()
    assert not tree_grpo_published_leaves(selected)[[3, 5]].any()


@pytest.mark.parametrize("policy", ["once", "fraction", "per_leaf"])
def test_rows_of_selected_leaves_train_what_the_published_credit_says(policy: str) -> None:
    """A trunk token gets the sum of its rows' advantages over their number, however the rows share it."""
    tree = two_trees()
    forest = forest_of(tree)
    kept = [int(forest.nodes[leaf]) for leaf in forest.leaves[[1, 3, 5]]]
    rows = rows_of(tree, credit="tree_grpo_as_published", policy=policy, kept=kept)  # type: ignore[arg-type]
    advantages = dict(zip(kept, tree_grpo_published_leaves(forest_of(tree, selected=kept))[[1, 3, 5]], strict=True))
    two = tree.stems()[1]
    below = [value for leaf, value in advantages.items() if two in tree.path(leaf)]
    number = {node: i for i, node in enumerate(tree.subtree())}[two]
    trained = sum(float(row.coefficients[row.is_sampled & (row.nodes == number)].sum()) for row in rows)
    assert len(below) == 2
    assert trained == pytest.approx(sum(below) / 3)


@given(st.integers(0, 10_000))
def test_any_tree_gets_one_finite_number_a_node(seed: int) -> None:
    forest = forest_of(wild(seed))
    for name in ("tree_grpo", "tree_grpo_as_published"):
        credited = credit(name, forest)
        assert np.isfinite(credited.coefficients).all()
        assert not credited.is_unbiased
