"""Batch: changes advantages by statistics of the whole batch, as some methods publish it. Trees are credited before
this.

Statistics are over the trained tokens of all rows, each counted with its weight. Context, observations and padding do
not count. The functions return new rows in the same order, and the new rows say that their gradient is no longer exact.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from ramify.core.errors import ExportError
from ramify.rows.row import Doubles_T, Row

ENTROPY_STRENGTH: Final = 0.2
"""zzfoutofspace/ATPO:AEPO/verl_aepo_entropy/verl/trainer/ppo/core_algos.py."""
WHITENING_EPSILON: Final = 1e-8
"""Added to the variance (verl, `masked_whiten`)."""


def whitened(rows: Sequence[Row]) -> list[Row]:
    """Rows whose advantages have mean 0 and sample variance 1 over the batch: TreePO (arXiv 2508.17445).

    Equal advantages become 0. Raises `ExportError` unless the total weight of the trained tokens is above 1.
    """
    mean, variance = _moments(rows, [row.advantages for row in rows])
    scale = 1 / np.sqrt(variance + WHITENING_EPSILON)
    return [_changed(row, (row.advantages - mean) * scale, "advantages whitened over the batch") for row in rows]


def entropy_scaled(rows: Sequence[Row], *, strength: float = ENTROPY_STRENGTH) -> list[Row]:
    """Rows whose advantages are multiplied by 1 + strength * z(entropy of the token): AEPO (arXiv 2510.14545).

    z is over the batch with the sample deviation; 0 if all entropies are equal. The published code uses the entropies
    of the policy in training. They equal these entropies while that policy is the one that sampled. Raises
    `ExportError` if a trained token has no entropy.
    """
    for row in rows:
        if np.isnan(row.entropies[row.weights > 0]).any():
            raise ExportError(
                f"row {row.leaf} of {row.uid!r} has trained tokens without an entropy; run a strategy that reads the "
                "measure 'entropy', on an engine that gives it"
            )
    mean, variance = _moments(rows, [row.entropies for row in rows])
    scale = strength / np.sqrt(variance) if variance else 0.0
    factors = [1 + scale * (np.nan_to_num(row.entropies) - mean) for row in rows]
    reason = "advantages scaled by the entropy of their tokens"
    return [_changed(row, row.advantages * factor, reason) for row, factor in zip(rows, factors, strict=True)]


def _moments(rows: Sequence[Row], values: Sequence[np.ndarray]) -> tuple[float, float]:
    """Mean and sample variance over the trained tokens. If all values are equal, the variance is exactly 0."""
    weights = np.concatenate([np.empty(0), *(row.weights[row.weights > 0] for row in rows)])
    trained = [of_row[row.weights > 0] for row, of_row in zip(rows, values, strict=True)]
    found = np.concatenate([np.empty(0), *trained]).astype(np.float64)
    total = weights.sum()
    if total <= 1:
        raise ExportError(f"the trained tokens of the batch weigh {total:g}; its statistics need more than 1")
    if (found == found[0]).all():
        return float(found[0]), 0.0
    mean = (weights * found).sum() / total
    return float(mean), float((weights * (found - mean) ** 2).sum() / (total - 1))


def _changed(row: Row, advantages: Doubles_T, reason: str) -> Row:
    """The row with other advantages on its sampled tokens, each positive or negative as a whole."""
    spans = tuple(replace(span, positive=None) for span in row.spans)
    changed = np.where(row.is_sampled, advantages, 0.0)
    return replace(row, advantages=changed, spans=spans, reasons=(*row.reasons, reason))
