"""Leaves are kept by a rule that draws from the tree's own seed; the others are marked."""

import numpy as np
import pytest
from tests.credit.trees import bare, end, fork, nested

from ramify.core.tree import ROOT
from ramify.rows import kept_leaves, mark_not_selected, rows_of, select_leaves
from ramify.strategies.parts.sample import as_planned, correct_first


@pytest.mark.covers("S0.7", "S0.10")
def test_n_leaves_are_kept_without_replacement_in_their_order() -> None:
    for seed in range(20):
        kept = select_leaves(bare().tree, [3, 7, 9, 11], 3, np.random.default_rng(seed))
        assert len(kept) == 3
        assert kept == sorted(set(kept))


def test_fewer_leaves_than_wanted_are_all_kept_and_none_is_added() -> None:
    assert select_leaves(bare().tree, [3, 7], 5, np.random.default_rng(0)) == [3, 7]


def test_another_rule_can_be_plugged_in() -> None:
    assert select_leaves(bare().tree, [3, 7], 5, np.random.default_rng(0), rule=as_planned) == [3, 7, 3, 7, 3]


def test_every_leaf_is_as_likely() -> None:
    rng = np.random.default_rng(1)
    tree = bare().tree
    kept = [leaf for _ in range(4000) for leaf in select_leaves(tree, range(5), 2, rng)]
    assert np.bincount(kept) / 4000 == pytest.approx([0.4] * 5, abs=0.03)


def test_a_tree_keeps_the_same_leaves_whenever_asked() -> None:
    assert kept_leaves(nested(), 2) == kept_leaves(nested(), 2)
    assert len(rows_of(nested(), kept=kept_leaves(nested(), 2))) == 2


def test_only_leaves_that_may_be_trained_are_kept() -> None:
    growth = bare()
    good, _ = fork(growth, ROOT, [end("a", 1.0)], [end("b", 0.0, "budget")])
    assert kept_leaves(growth.tree, 5) == [good]


def test_leaves_that_are_not_selected_are_marked() -> None:
    tree = nested()
    kept = kept_leaves(tree, 2)
    mark_not_selected(tree, kept)
    assert [leaf for leaf in tree.leaves() if "not_selected" not in tree.notes(leaf)] == kept


def test_one_correct_leaf_is_always_kept_and_the_rest_at_random() -> None:
    """TreeRL's rule: of one right and four wrong leaves two are kept, the right one always."""
    growth = bare()
    right, *wrong = fork(growth, ROOT, [end("a", 1.0)], *[[end(letter, 0.0)] for letter in "bcde"])
    rng = np.random.default_rng(0)
    kept = [correct_first(growth.tree, [*wrong, right], 2, rng) for _ in range(400)]
    assert all(len(pair) == 2 and pair[1] == right for pair in kept)
    assert np.bincount([pair[0] or 0 for pair in kept])[wrong] / 400 == pytest.approx([0.25] * 4, abs=0.08)


def test_without_a_correct_leaf_or_with_too_few_it_draws_or_pads() -> None:
    growth = bare()
    wrong = fork(growth, ROOT, *[[end(letter, 0.0)] for letter in "abc"])
    rng = np.random.default_rng(0)
    assert {leaf for _ in range(50) for leaf in correct_first(growth.tree, wrong, 2, rng)} == set(wrong)
    assert correct_first(growth.tree, wrong, 5, rng) == [*wrong, None, None]
    assert correct_first(growth.tree, [], 1, rng) == [None]
