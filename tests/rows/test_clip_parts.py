"""The parts of an advantage: a clipped loss that trains a shared token once is the sum over every leaf's own row."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.credit.trees import nested, wild
from tests.rows.batches import chains

from ramify.rows import Row, padded, rows_of, whitened
from ramify.rows.weights import Policy

LOW, HIGH, DUAL = 0.2, 0.28, 3.0
OF_LEAVES = ("leaf_grpo", "leaf_loo", "leaf_mean")
Doubles = npt.NDArray[np.float64]
Loss = Callable[[Doubles, Doubles, Doubles, Doubles], Doubles]
"""Of positive part, negative part, share and ratio of each token."""


def clip(positive: Doubles, negative: Doubles, _: Doubles, ratio: Doubles) -> Doubles:
    return positive * np.minimum(ratio, 1 + HIGH) + negative * np.maximum(ratio, 1 - LOW)


def dual_clip(positive: Doubles, negative: Doubles, _: Doubles, ratio: Doubles) -> Doubles:
    return positive * np.minimum(ratio, 1 + HIGH) + negative * np.minimum(np.maximum(ratio, 1 - LOW), DUAL)


def distance(_: Doubles, __: Doubles, share: Doubles, ratio: Doubles) -> Doubles:
    """KL to the policy that sampled, by the estimator k3."""
    return share * (1 / ratio + np.log(ratio) - 1)


def total(rows: Sequence[Row], loss: Loss, seed: int) -> float:
    """The loss of all rows. The ratio belongs to a token: its node and its place there, whichever row trains it."""
    found = 0.0
    for row in rows:
        ratio = np.concatenate(
            [np.exp(np.random.default_rng([seed, s.node]).normal(0, 0.6, s.num_tokens)) for s in row.spans]
        )
        terms = loss(row.positive, row.advantages - row.positive, row.shares, ratio)
        found += float((row.weights * terms).sum()) / row.normaliser
    return found


@pytest.mark.slow
@given(seed=st.integers(0, 10_000))
@pytest.mark.parametrize("loss", [clip, dual_clip, distance])
@pytest.mark.parametrize("credit", OF_LEAVES)
def test_a_token_once_is_the_sum_over_every_leafs_own_row(credit: str, loss: Loss, seed: int) -> None:
    tree = wild(seed)
    once, fraction, per_leaf = (
        total(rows_of(tree, credit=credit, policy=policy, normaliser=8.0), loss, seed)
        for policy in ("once", "fraction", "per_leaf")
    )
    assert once == pytest.approx(per_leaf, abs=1e-9)
    assert fraction == pytest.approx(per_leaf, abs=1e-9)


def test_one_clip_of_the_sum_is_another_loss() -> None:
    rows = rows_of(nested(), credit="leaf_grpo", policy="once", normaliser=8.0)
    netted = [replace(row, spans=tuple(replace(span, positive=None) for span in row.spans)) for row in rows]
    assert abs(total(netted, clip, 1) - total(rows, clip, 1)) > 0.01


@given(seed=st.integers(0, 10_000))
@pytest.mark.parametrize("policy", ["once", "fraction", "per_leaf"])
@pytest.mark.parametrize("credit", ["leaf_grpo", "sibling_mean", "treerl"])
def test_the_parts_have_their_signs_and_are_nothing_where_nothing_was_sampled(
    credit: str, policy: Policy, seed: int
) -> None:
    for row in rows_of(wild(seed), credit=credit, policy=policy, normaliser=8.0):
        assert (row.positive >= 0).all() and (row.advantages <= row.positive + 1e-12).all()
        assert not row.positive[~row.is_sampled].any() and not row.shares[~row.is_sampled].any()
        assert (row.shares[row.weights > 0] > 0).all()


@pytest.mark.parametrize("credit", ["leaf_grpo", "split", "subtree_loo"])
def test_on_chains_every_token_has_its_rows_sign_and_the_share_1(credit: str) -> None:
    for row in rows_of(chains(1.0, 0.0, 0.5), credit=credit):
        assert row.positive[row.is_sampled] == pytest.approx(np.maximum(row.advantages[row.is_sampled], 0))
        assert row.shares[row.is_sampled] == pytest.approx(1)


def test_whitened_advantages_are_of_one_sign() -> None:
    for row in whitened(rows_of(nested(), credit="leaf_grpo", normaliser=8.0)):
        assert (row.positive == np.maximum(row.advantages, 0)).all()


def test_arrays_hold_the_parts() -> None:
    rows = rows_of(nested(), credit="leaf_grpo", normaliser=8.0)
    arrays = padded(rows)
    for number, row in enumerate(rows):
        length = len(row) - row.num_prompt
        assert arrays.positive[number, :length] == pytest.approx(row.positive[row.num_prompt :])
        assert arrays.shares[number, :length] == pytest.approx(row.shares[row.num_prompt :])
