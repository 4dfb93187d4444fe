"""Paired: the difference of two strategies on the same problems, with an interval over problems.

The interval is a percentile bootstrap of problems, so it says how far the figure would move with other problems of the
same kind, and nothing about other models, seeds or tasks.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

NUM_RESAMPLES = 4000


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


def resamples(num_problems: int, num_resamples: int = NUM_RESAMPLES) -> npt.NDArray[np.int64]:
    """(num_resamples, num_problems) problems drawn with replacement. Deterministic: they have a seed of their own."""
    return np.random.default_rng(0).integers(num_problems, size=(num_resamples, num_problems))


def paired_difference(
    values: Sequence[float], baseline: Sequence[float], *, confidence: float = 0.95, num_resamples: int = NUM_RESAMPLES
) -> Difference:
    """`values` less `baseline`, problem by problem. Deterministic."""
    differences = np.asarray(values, np.float64) - np.asarray(baseline, np.float64)
    if not len(differences):
        return Difference(0.0, 0.0, 0.0)
    picks = resamples(len(differences), num_resamples)
    tail = (1 - confidence) / 2
    low, high = np.quantile(differences[picks].mean(axis=1), (tail, 1 - tail))
    return Difference(float(differences.mean()), float(low), float(high))
