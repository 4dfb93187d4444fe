"""n rows of every tree: real leaves that stand for all, or an error; never an empty row, never a copy."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.credit.trees import bare, end, fork, nested, step, wild
from tests.rows.test_row import expected, summed

from ramify.core.errors import ExportError
from ramify.core.tree import ROOT
from ramify.rows import Row, rows_of
from ramify.rows.positional import positional_rows


@given(st.integers(0, 10_000), st.integers(1, 4))
def test_a_tree_gives_n_rows_with_trained_tokens_or_says_what_to_set(seed: int, n: int) -> None:
    tree = wild(seed)
    num_leaves = len(rows_of(tree, policy="per_leaf"))
    if num_leaves < n:
        with pytest.raises(ExportError, match=f"rows.min_leaves = {n}"):
            positional_rows(tree, n)
        return
    rows = positional_rows(tree, n)
    assert len({row.leaf for row in rows}) == n
    assert all(row.weights.any() for row in rows)
    assert {row.normaliser for row in rows} == {n}
    weights = summed(rows, "weights")
    assert weights == pytest.approx(dict.fromkeys(weights, 1.0))


def test_the_mean_over_all_draws_is_the_credit_of_the_whole_tree() -> None:
    """Leaves are drawn by the tree's seed alone: under many seeds every pair of the five is drawn."""
    tree = nested()
    drawn: dict[tuple[int, ...], list[Row]] = {}
    for seed in range(120):
        tree.seed = seed
        rows = positional_rows(tree, 2)
        drawn[tuple(row.leaf for row in rows)] = rows
    assert len(drawn) == 10
    totals: Counter[tuple[int, int]] = Counter()
    for rows in drawn.values():
        totals.update({token: value / 10 for token, value in summed(rows, "coefficients").items()})
    assert totals == pytest.approx(expected(tree))


def test_a_row_that_would_be_empty_shares_its_tokens_instead() -> None:
    growth = bare()
    (tip,) = fork(growth, ROOT, [step("a")])
    fork(growth, tip, [end("", 1.0, "length")], [end("b", 0.0)], [end("", 0.0, "length")])
    assert len(rows_of(growth.tree)) == 2
    rows = positional_rows(growth.tree, 3)
    assert [row.policy for row in rows] == ["fraction"] * 3
    assert all(row.weights.any() for row in rows)
    assert summed(rows, "coefficients") == pytest.approx(expected(growth.tree))
    assert list(summed(rows, "weights").values()) == pytest.approx([1.0, 1.0])


def test_a_leaf_without_a_sampled_token_is_no_row() -> None:
    growth = bare()
    fork(growth, ROOT, [end("", 1.0, "context_full")], [end("b", 0.0)])
    with pytest.raises(ExportError, match="nothing was sampled"):
        positional_rows(growth.tree, 2)
