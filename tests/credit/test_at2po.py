"""AT2PO's turn credit: values from the leaves up, three ways, and what is taken from them, four ways."""

from dataclasses import replace
from fractions import Fraction
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.credit.trees import nested, wild

from ramify.core.errors import ContractError
from ramify.credit import CREDITS, Forest, at2po, at2po_as_published, credit, forest_of, measures_of
from ramify.credit.at2po import Advantage, Value, turn_advantages, turn_values
from ramify.credit.forest import STEM
from ramify.credit.grown import MEAN_SURPRISAL
from ramify.rows import rows_of

SEEDS = st.integers(0, 10_000)


def example() -> Forest:
    """Two turns below the prompt: leaves 1, 0, 0 and 1, 1."""
    bare = Forest.of_arrays(
        parent=[STEM, STEM, 0, 0, 0, 1, 1], share=[1.0] * 7, reward=[None, None, 1.0, 0.0, 0.0, 1.0, 1.0]
    )
    return replace(bare, measures={MEAN_SURPRISAL: np.array([0.9, 0.4, 0.2, 0.6, 1.1, 0.3, 0.1])})


def test_values_of_the_example() -> None:
    values, root = turn_values(example(), value="child_softmax")
    assert values.tolist()[:3] == pytest.approx([-0.8125, 0.8165, 0.8165], abs=1e-4)
    assert root == pytest.approx(-0.1975, abs=1e-4)


@given(SEEDS, st.sampled_from(get_args(Value)))
def test_a_value_is_a_mean_of_the_leaves_below(seed: int, value: str) -> None:
    forest = forest_of(wild(seed), measures=[MEAN_SURPRISAL])
    values, root = turn_values(forest, value=value, normalise=False)  # type: ignore[arg-type]
    if len(forest):
        low, high = forest.rewards.min() - 1e-9, forest.rewards.max() + 1e-9
        assert ((low <= values) & (values <= high)).all()
        assert low <= root <= high


def test_leaf_means_are_split_values_where_shares_are_those_of_leaves() -> None:
    forest = example()
    by_leaves = replace(forest, share=np.array([3 / 5, 2 / 5, *[1 / 3] * 3, *[1 / 2] * 2]))
    values, root = turn_values(forest, value="leaf_mean", normalise=False)
    assert values.tolist() == pytest.approx(by_leaves.value.tolist())
    assert root == pytest.approx(3 / 5)


@given(SEEDS, st.sampled_from(get_args(Value)))
def test_the_differences_are_of_one_set_of_values(seed: int, value: Value) -> None:
    forest = forest_of(wild(seed), measures=[MEAN_SURPRISAL])
    found = {name: turn_advantages(forest, value=value, advantage=name) for name in get_args(Advantage)}
    local, across = found["diff_parent"], found["diff_global"]
    assert found["diff_localglobal"].tolist() == pytest.approx((local + across).tolist())
    if len(forest):
        root = (found["node_value"] - across)[0]
        above = [local[node] for node in _path(forest.parent, int(forest.leaves[0]))]
        assert root + sum(above) == pytest.approx(found["node_value"][forest.leaves[0]])


def _path(parent: np.ndarray, leaf: int) -> list[int]:
    path = [leaf]
    while parent[path[-1]] != STEM:
        path.append(int(parent[path[-1]]))
    return path


def test_equal_rewards_say_exactly_nothing() -> None:
    forest = replace(example(), reward=np.where(example().is_leaf, 0.1 + 0.2, np.nan))
    for name in (name for name in CREDITS if name.startswith("at2po")):
        assert not credit(name, forest).coefficients.any()


def test_every_mode_has_a_name_and_says_what_it_reads() -> None:
    names = [name for name in CREDITS if name.startswith("at2po")]
    assert len(names) == 3 * 4 + 1
    assert measures_of("at2po_child_softmax_diff_parent") == (MEAN_SURPRISAL,)
    assert measures_of("at2po") == measures_of("at2po_child_mean_diff_global") == ()
    expected = turn_advantages(example(), value="child_mean", advantage="diff_parent") / 5
    assert credit("at2po_child_mean_diff_parent", example()).coefficients.tolist() == expected.tolist()


def test_rationals_are_taken_as_floats() -> None:
    forest = Forest.of_arrays([STEM, STEM], [Fraction(1, 2)] * 2, [Fraction(1), Fraction(0)])
    assert at2po(forest).tolist() == pytest.approx([0.5, -0.5], abs=1e-5)


def test_as_published_the_tree_is_pruned_to_the_rows_first() -> None:
    forest = example()
    selected = np.array([False, False, True, False, True, True, False])
    pruned = Forest.of_arrays([STEM, STEM, 0, 0, 1], [1.0] * 5, [None, None, 1.0, 0.0, 1.0])
    surprisal = forest.measures[MEAN_SURPRISAL][[0, 1, 2, 4, 5]]
    expected = turn_advantages(
        replace(pruned, measures={MEAN_SURPRISAL: surprisal}), value="child_softmax", advantage="node_value"
    )
    found = turn_advantages(replace(forest, selected=selected), value="child_softmax", advantage="node_value")
    assert found[[0, 1, 2, 4, 5]].tolist() == pytest.approx(expected.tolist())
    assert not found[[3, 6]].any()
    assert not at2po_as_published(replace(forest, selected=selected))[[3, 6]].any()


@pytest.mark.parametrize("number", [3, 5])
def test_every_row_of_a_node_is_trained_with_its_advantage_as_published(number: int) -> None:
    tree = nested()
    kept = tree.leaves()[:number]
    forest = forest_of(tree, selected=kept, measures=[MEAN_SURPRISAL])
    advantages = turn_advantages(forest, value="child_softmax", advantage="node_value")
    canonical = {node: i for i, node in enumerate(tree.subtree())}
    of_node = {canonical[int(node)]: a for node, a in zip(forest.nodes, advantages, strict=True)}
    rows = rows_of(tree, credit="at2po_as_published", policy="per_leaf", kept=kept)
    assert len(rows) == number
    for row in rows:
        expected = [of_node[int(node)] for node in row.nodes[row.is_sampled]]
        assert row.advantages[row.is_sampled].tolist() == pytest.approx(expected)
        assert (row.weights[row.is_sampled] == 1).all()


def test_softmax_needs_surprisals_of_all_that_was_sampled() -> None:
    forest = example()
    gaps = np.where(forest.nodes == 3, np.nan, forest.measures[MEAN_SURPRISAL])
    with pytest.raises(ContractError, match="'mean_surprisal'"):
        at2po(replace(forest, measures={MEAN_SURPRISAL: gaps}), value="child_softmax")
    silent = replace(forest, measures={MEAN_SURPRISAL: gaps}, num_tokens=(forest.nodes != 3).astype(np.int32))
    assert np.isfinite(at2po(silent, value="child_softmax")).all()
