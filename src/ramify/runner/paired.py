"""Paired: the difference of two strategies on the same problems, with an interval over problems.

The interval is a percentile bootstrap of problems, so it says how far the figure would move with other problems of the
same kind, and nothing about other models, seeds or tasks.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Difference:
    """Mean of the paired differences and its interval."""

    mean: float
    low: float
    high: float

    @property
    def word(self) -> str:
        """`more`, `fewer`, or `equal` where the interval holds 0."""
        return "more" if self.low > 0 else "fewer" if self.high < 0 else "equal"


def paired_difference(
    values: Sequence[float], baseline: Sequence[float], *, confidence: float = 0.95, num_resamples: int = 4000
) -> Difference:
    """`values` less `baseline`, problem by problem. Deterministic: the resampling has a seed of its own."""
    differences = np.asarray(values, np.float64) - np.asarray(baseline, np.float64)
    if not len(differences):
        return Difference(0.0, 0.0, 0.0)
    rng = np.random.default_rng(0)
    picks = rng.integers(len(differences), size=(num_resamples, len(differences)))
    tail = (1 - confidence) / 2
    low, high = np.quantile(differences[picks].mean(axis=1), (tail, 1 - tail))
    return Difference(float(differences.mean()), float(low), float(high))
