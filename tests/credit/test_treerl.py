"""TreeRL's process reward, on trees as they grow and with rows that are only some of the leaves."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.credit.trees import bare, end, fork, give, nested, step, wild

from ramify.core.command import Grow
from ramify.core.growth import Growth
from ramify.core.tree import ROOT
from ramify.credit import credit, forest_of, treerl, treerl_as_published
from ramify.credit.treerl import process_rewards, published_rewards
from ramify.rows import rows_of


def two_stems(*, cut: bool) -> Growth:
    """A stem of one step that forks in two, and a chain; with `cut` every path is divided once more."""
    growth = bare()
    tips = fork(growth, ROOT, *([[step("a"), step("b")], [step("c"), end("d", 0.0)]] if cut else
                                [[step("ab")], [end("cd", 0.0)]]))  # fmt: skip
    inner = [[step("e"), end("f", 1.0)], [step("g"), end("h", 0.0)]] if cut else [[end("ef", 1.0)], [end("gh", 0.0)]]
    fork(growth, tips[0], *inner)
    return growth


def test_a_segment_is_compared_with_the_forest_and_with_the_segment_above() -> None:
    """V = 1/2, 0; 1, 0 below; all 1/3: R = 2 (1/2 - 1/3) / sqrt 2, 2 (0 - 1/3), (1 - 1/3) + (1 - 1/2), …"""
    forest = forest_of(two_stems(cut=False).tree)
    expected = [2 / 6 / 2**0.5, -2 / 3, 2 / 3 + 1 / 2, -1 / 3 - 1 / 2]
    assert process_rewards(forest).tolist() == pytest.approx(expected)
    assert treerl(forest).tolist() == pytest.approx([value / 2 for value in expected])


def test_every_step_of_a_segment_gets_what_the_segment_gets() -> None:
    whole, cut = forest_of(two_stems(cut=False).tree), forest_of(two_stems(cut=True).tree)
    for found in (process_rewards, published_rewards):
        in_order = found(cut).tolist()
        assert in_order == pytest.approx(np.repeat(found(whole), 2)[[0, 2, 1, 3, 4, 6, 5, 7]].tolist())


def test_a_fork_whose_continuation_failed_changes_nothing() -> None:
    growth = two_stems(cut=False)
    before = treerl(forest_of(growth.tree))
    command = growth.ask(Grow(growth.tree.leaves()[0], at=growth.tree.length(ROOT) + 1))
    give(growth, command, end("", None, "engine_error"))
    after = forest_of(growth.tree)
    assert len(after) == len(before) + 1
    assert set(treerl(after).round(12)) == set(before.round(12))


@given(st.integers(0, 999))
def test_equal_rewards_give_nothing_and_no_tree_breaks_it(seed: int) -> None:
    forest = forest_of(wild(seed))
    for name in ("treerl", "treerl_as_published"):
        credited = credit(name, forest)
        assert np.isfinite(credited.coefficients).all()
        assert not credited.is_unbiased
    if len(forest) and np.ptp(forest.rewards) == 0:
        assert treerl_as_published(forest).tolist() == [0.0] * len(forest)
        assert treerl(forest).tolist() == pytest.approx([0.0] * len(forest), abs=1e-12)


@pytest.mark.parametrize("num_kept", [2, 4, 5])
def test_rows_hold_the_published_gradient_of_the_selected_leaves(num_kept: int) -> None:
    """Published, every selected row trains each of its tokens with its node's reward: a shared token once a row."""
    tree = nested()
    kept = tree.leaves()[:num_kept]
    forest = forest_of(tree, selected=kept)
    rewards = published_rewards(forest)
    expected: dict[int, float] = {}
    for leaf in kept:
        for node in tree.path(leaf)[1:]:
            index = int(np.flatnonzero(forest.nodes == node)[0])
            expected[node] = expected.get(node, 0.0) + float(rewards[index]) / num_kept
    rows = rows_of(tree, credit="treerl_as_published", kept=kept)
    order = tree.subtree()
    found: dict[int, float] = {}
    for row in rows:
        for number, value in {(int(n), float(c)) for n, c in zip(row.nodes, row.coefficients, strict=True) if c}:
            found[order[number]] = found.get(order[number], 0.0) + value
    assert found == pytest.approx({node: value for node, value in expected.items() if value})
