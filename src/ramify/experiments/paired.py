"""Paired: the difference of two strategies on the same problems, with an interval over problems.

The interval is a percentile bootstrap of problems. It says how much the difference would vary with other problems of
the same kind. It says nothing about other models, seeds or tasks.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from ramify.planner.interval import CONFIDENCE, Interval

NUM_RESAMPLES: Final = 4000


def resamples(num_problems: int) -> npt.NDArray[np.int64]:
    """(NUM_RESAMPLES, num_problems) indices of problems, drawn with replacement. Deterministic: the seed is fixed."""
    return np.random.default_rng(0).integers(num_problems, size=(NUM_RESAMPLES, num_problems))


def paired_difference(values: Sequence[float], baseline: Sequence[float]) -> Interval:
    """`values` minus `baseline`, paired by problem. Deterministic."""
    differences = np.asarray(values, np.float64) - np.asarray(baseline, np.float64)
    if not len(differences):
        return Interval(0.0, 0.0, 0.0)
    picks = resamples(len(differences))
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(differences[picks].mean(axis=1), (tail, 1 - tail))
    return Interval(float(differences.mean()), float(low), float(high))


def difference_dict(difference: Interval) -> dict[str, float]:
    """A difference in the JSON form of reports."""
    return {"mean": difference.value, "low": difference.low, "high": difference.high}
