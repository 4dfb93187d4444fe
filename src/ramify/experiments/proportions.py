"""Proportions: pass@k and the interval of a share of solved problems, by textbook formulas over counts.

Use `pass_at_k` for exchangeable samples only. Leaves of one tree share prefixes and are not exchangeable: for a tree,
report the coverage at its cost.
"""

import math
from statistics import NormalDist


def pass_at_k(num_samples: int, num_right: int, k: int) -> float:
    """Probability that k of n samples, drawn without replacement, include a right one: 1 - C(n - c, k) / C(n, k).

    Unbiased if the samples are independent (arXiv 2107.03374). Raises `ValueError` unless 1 <= k <= n and 0 <= c <= n.
    """
    if not (0 <= num_right <= num_samples and 1 <= k <= num_samples):
        raise ValueError(
            f"pass@{k} of {num_samples} samples, {num_right} right: k must be 1 to n, the right ones 0 to n"
        )
    return 1 - math.comb(num_samples - num_right, k) / math.comb(num_samples, k)


def wilson(num_successes: int, num_trials: int, *, confidence: float = 0.95) -> tuple[float, float]:
    """Wilson's score interval of a proportion. (0, 1) without trials."""
    if not num_trials:
        return 0.0, 1.0
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    share, part = num_successes / num_trials, z * z / num_trials
    middle = (share + part / 2) / (1 + part)
    half = z / (1 + part) * math.sqrt(share * (1 - share) / num_trials + part / (4 * num_trials))
    return max(0.0, middle - half), min(1.0, middle + half)
