"""Proportions: what shares of solved problems say, and how surely.

All are textbook formulas over counts. `pass_at_k` is for exchangeable samples only: leaves of one tree share prefixes
and are not, so of a tree the coverage at its cost is reported instead.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import TypeVar

import numpy as np

T = TypeVar("T")


def pass_at_k(num_samples: int, num_right: int, k: int) -> float:
    """Probability that k of n samples, drawn without replacement, hold a right one: 1 - C(n - c, k) / C(n, k).

    Unbiased where the samples are independent (arXiv 2107.03374). Raises `ValueError` where 1 <= k <= n does not hold.
    """
    if not (0 <= num_right <= num_samples and 1 <= k <= num_samples):
        raise ValueError(f"pass@{k} of {num_samples} samples, {num_right} right: k is 1 to n, and 0 to n are right")
    return 1 - math.comb(num_samples - num_right, k) / math.comb(num_samples, k)


def majority_at_k(classes: Sequence[int], is_right: Sequence[bool], k: int, *, num_draws: int = 1000) -> float:
    """Mean over random k-subsets of whether their most frequent answer is right; -1 = no answer. Deterministic."""
    rng = np.random.default_rng(0)
    num_won = 0
    for _ in range(num_draws):
        picks = sorted(rng.choice(len(classes), size=k, replace=False))
        counts: dict[int, int] = {}
        for pick in picks:
            if classes[pick] >= 0:
                counts[classes[pick]] = counts.get(classes[pick], 0) + 1
        winner = max(counts, key=counts.__getitem__, default=-1)
        num_won += winner >= 0 and is_right[next(p for p in picks if classes[p] == winner)]
    return num_won / num_draws


def wilson(num_successes: int, num_trials: int, *, confidence: float = 0.95) -> tuple[float, float]:
    """Wilson's score interval of a proportion. Nothing tried says nothing: (0, 1)."""
    if not num_trials:
        return 0.0, 1.0
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    share, part = num_successes / num_trials, z * z / num_trials
    middle = (share + part / 2) / (1 + part)
    half = z / (1 + part) * math.sqrt(share * (1 - share) / num_trials + part / (4 * num_trials))
    return max(0.0, middle - half), min(1.0, middle + half)


@dataclass(frozen=True, slots=True)
class Paired:
    """Two methods on the same problems, one try each."""

    only_first: int
    """Problems that the first solved alone."""
    only_second: int
    difference: float
    """Share solved by the first less that by the second."""
    p_value: float
    """Two-sided, exact: how probable a split at least as uneven is where both are equally good."""


def mcnemar(first: Sequence[bool], second: Sequence[bool]) -> Paired:
    """McNemar's exact test. Raises `ValueError` if they are not the same number of problems."""
    pairs = list(zip(first, second, strict=True))
    only_first = sum(one and not other for one, other in pairs)
    only_second = sum(other and not one for one, other in pairs)
    total, fewer = only_first + only_second, min(only_first, only_second)
    tail = sum(math.comb(total, i) for i in range(fewer + 1)) / 2**total
    difference = (only_first - only_second) / len(pairs) if pairs else 0.0
    return Paired(only_first, only_second, difference, min(1.0, 2 * tail))


def value_at_budget(curve: Sequence[tuple[float, T]], budget: float) -> T | None:
    """Value of the last answer whose cumulative cost is within the budget: a step function; None = nothing yet.

    `curve` holds (cumulative cost, value) in order of cost.
    """
    return next((value for cost, value in reversed(curve) if cost <= budget), None)


def holm(p_values: Sequence[float]) -> list[float]:
    """The p-values of several comparisons, each made as large as their number asks for (Holm 1979)."""
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    adjusted = [0.0] * len(p_values)
    largest = 0.0
    for rank, index in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = largest
    return adjusted
