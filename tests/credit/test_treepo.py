"""TreePO's mean of advantages in subgroups, on trees as they grow."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.credit.trees import bare, end, fork, nested, step, wild

from ramify.core.tree import ROOT
from ramify.credit import Forest, credit, forest_of, treepo
from ramify.credit.forest import STEM
from ramify.credit.treepo import published_advantages, subgroup_advantages
from ramify.rows import rows_of


def test_a_leaf_is_compared_with_all_and_with_those_below_each_fork_of_its_path() -> None:
    """Rewards 1, 0, 1/2 below one fork and 1/4, -1 below another: means 1/2, -3/8 and 3/20 in all."""
    found = subgroup_advantages(forest_of(nested()))
    expected = [r - (0.15 + mean) / 2 for r, mean in ((0.25, -0.375), (-1, -0.375), (1, 0.5), (0, 0.5), (0.5, 0.5))]
    assert sorted(found.tolist()) == pytest.approx(sorted(expected))


def test_a_step_without_a_decision_makes_no_group_of_its_own_but_does_as_published() -> None:
    def grown(*, cut: bool) -> Forest:
        growth = bare()
        tips = fork(growth, ROOT, [step("a"), step("b")] if cut else [step("ab")], [end("c", 0.0)])
        fork(growth, tips[0], [end("d", 1.0)], [end("e", 0.0)])
        return forest_of(growth.tree)

    assert subgroup_advantages(grown(cut=True)).tolist() == subgroup_advantages(grown(cut=False)).tolist()
    assert published_advantages(grown(cut=True)).tolist() != published_advantages(grown(cut=False)).tolist()


def test_a_row_alone_is_compared_with_nothing() -> None:
    growth = bare()
    fork(growth, ROOT, [step("a"), end("b", 0.7)])
    forest = forest_of(growth.tree)
    assert subgroup_advantages(forest).tolist() == [0.0]
    assert published_advantages(forest).tolist() == [0.7]


@given(st.integers(0, 999))
def test_equal_rewards_give_exactly_nothing(seed: int) -> None:
    forest = forest_of(wild(seed))
    for name in ("treepo", "treepo_as_published", "treepo_group_size_drop_flat_as_published"):
        credited = credit(name, forest)
        assert credited.coefficients.shape == (len(forest),)
        assert not credited.is_unbiased
        if forest.num_leaves > 1 and np.ptp(forest.rewards) == 0:
            assert not credited.coefficients.any()


def test_flat_groups_are_left_out_where_asked() -> None:
    """Stems of rewards 1, 1 and 0, 1: the first stem's group says nothing."""
    forest = Forest.of_arrays(parent=[STEM, STEM, 0, 0, 1, 1], share=[0.5] * 6, reward=[None, None, 1.0, 1.0, 0.0, 1.0])
    assert published_advantages(forest).tolist() == [0.125, 0.125, -0.625, 0.375]
    assert published_advantages(forest, drop_flat=True).tolist() == [0.25, 0.25, -0.625, 0.375]
    by_size = published_advantages(forest, weighing="group_size")
    assert by_size.tolist() == pytest.approx([1 / 6, 1 / 6, -2 / 3, 1 / 3])


def test_rows_per_leaf_train_every_token_with_the_advantage_of_the_row() -> None:
    tree = nested()
    advantages = published_advantages(forest_of(tree))
    rows = rows_of(tree, credit="treepo_as_published", policy="per_leaf")
    assert [float(row.advantages[row.is_sampled][0]) for row in rows] == pytest.approx(advantages.tolist())
    assert all(len(set(row.advantages[row.is_sampled].tolist())) == 1 for row in rows)


def test_coefficients_are_those_of_the_leaves_over_their_number() -> None:
    forest = forest_of(nested())
    by_leaf = dict(zip(forest.leaves.tolist(), subgroup_advantages(forest), strict=True))
    assert treepo(forest)[forest.leaves].tolist() == pytest.approx([by_leaf[leaf] / 5 for leaf in forest.leaves])
    assert treepo(forest)[forest.stems].sum() == pytest.approx(sum(by_leaf.values()) / 5)
