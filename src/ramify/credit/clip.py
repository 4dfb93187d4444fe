"""Clip: what a clipped loss needs for a token shared by several leaves, so that it is trained once and exactly.

PPO's clip is not linear in the advantage. With r the ratio of a token, it holds exactly that sum over l of w_l min(r
A_l, clip(r) A_l) = A_plus min(r, 1 + high) + A_minus max(r, 1 - low). Clipping A_plus + A_minus once is a different
loss. W multiplies terms without an advantage (KL, entropy). See `docs/concepts/credit.md`.
"""

from typing import NamedTuple

import numpy as np

from ramify.core.errors import ContractError
from ramify.credit.forest import Array_N, Forest
from ramify.credit.group import Advantages


class ClipParts(NamedTuple):
    """Sums for each node over the leaves below it."""

    plus: Array_N
    """(N,) sum of w_l max(A_l, 0)."""
    minus: Array_N
    """(N,) sum of w_l min(A_l, 0)."""
    weight: Array_N
    """(N,) sum of w_l."""


def clip_parts(forest: Forest, advantages: Advantages) -> ClipParts:
    """The parts for (num_leaves,) leaf advantages, with the leaves' split weights.

    Raises `ContractError` under random termination (coins): a leaf that it ended would count besides the leaves that
    already stand for it.
    """
    if forest.has_coins:
        raise ContractError(
            "leaf advantages do not make up for randomly terminated paths; clip the nodes' coefficients"
        )
    weight = forest.weight[forest.leaves]
    return ClipParts(
        plus=forest.over_leaves(weight * np.maximum(advantages, 0)),
        minus=forest.over_leaves(weight * np.minimum(advantages, 0)),
        weight=forest.over_leaves(weight),
    )
