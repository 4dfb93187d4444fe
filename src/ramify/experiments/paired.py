"""Paired: the difference of two strategies on the same problems, with an interval over problems.

The interval is Bonett and Price's (Statistics in Medicine 31, 2012, section 2): the difference of shares is computed as
if there were two more problems, of which each side alone solved one. So its width is never 0: where all problems agree,
it says what the next problems may still bring. Ordinary intervals (Student's, bootstraps) have no width there, and find
differences between chains and chains (`bench/false_verdicts.py`). It says how much the difference would vary with other
problems of the same kind, and nothing about other models or tasks.
"""

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import Final

import numpy as np

from ramify.planner.interval import CONFIDENCE, Interval

NUM_ADDED: Final = 2
"""Problems that are added, with the differences +1 and -1."""


def paired_difference(values: Sequence[float], baseline: Sequence[float], *, num_comparisons: int = 1) -> Interval:
    """The mean of `values` minus `baseline`, both shares from 0 to 1, paired by problem.

    If several intervals are read together, all of them hold at once with 95 % if each is told of their number
    (Bonferroni).
    """
    differences = np.asarray(values, np.float64) - np.asarray(baseline, np.float64)
    number = len(differences) + NUM_ADDED
    middle = float(differences.sum()) / number
    variance = (float(np.square(differences).sum()) + NUM_ADDED) / number - middle**2
    half = _student(1 - (1 - CONFIDENCE) / (2 * num_comparisons), number - 1) * math.sqrt(variance / number)
    value = float(differences.mean()) if len(differences) else 0.0
    return Interval(value, max(-1.0, middle - half), min(1.0, middle + half))


def can_show(baseline: Sequence[float], *, num_comparisons: int = 1) -> frozenset[str]:
    """The verdicts that another side could get on these problems: `more` if it solved them all, `fewer` if it solved
    none."""
    extremes = [[share] * len(baseline) for share in (1.0, 0.0)]
    words = {paired_difference(extreme, baseline, num_comparisons=num_comparisons).word for extreme in extremes}
    return frozenset(words - {"equal"})


def difference_dict(difference: Interval) -> dict[str, float]:
    """A difference in the JSON form of reports."""
    return {"mean": difference.value, "low": difference.low, "high": difference.high}


def _student(share: float, freedom: int) -> float:
    """The quantile of Student's t (Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.5)."""
    z, v = NormalDist().inv_cdf(share), float(freedom)
    return (
        z
        + (z**3 + z) / (4 * v)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * v**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * v**3)
    )
