"""Hierarchy: scores in groups, and a prediction of the next score of each group, or of a new group.

The model: a score of group j is Normal(alpha_j, sigma_y), alpha_j = mu + sigma_a z_j with z_j standard normal; mu ~
Normal(mean, 0.2), sigma_a ~ HalfNormal(0.2), sigma_y ~ HalfNormal(0.3). Given both sigmas, everything else is normal.
So the posterior is summed over a grid of the two sigmas instead of sampled: mu and every alpha are integrated exactly.
Draws are independent of each other, like those of an infinitely long chain. The posterior depends on the groups only
through their counts, means and sums of squares. Its cost grows with the number of different group sizes.

If all scores were equal, sigma_y = 0 would be infinitely likely. Therefore sigma_y is at least the rounding error of a
score rounded to 1/100. Pure; only `draw_group`, `draw_new` and `draw_prior` draw.

Source: SakanaAI/treequest src/treequest/algos/ab_mcts_m/pymc_interface.py, which samples the same model by NUTS.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ramify.strategies.parts.posteriors import RunningMean, Variates

Floats = NDArray[np.float64]
Span = tuple[float, float]
"""Lower and upper end of the logarithm of a sigma."""
Spans = tuple[Span, Span]
"""Spans of sigma_a and sigma_y."""
MU_SD: Final = 0.2
SIGMA_A_SCALE: Final = 0.2
SIGMA_Y_SCALE: Final = 0.3
LEAST_SIGMA_A: Final = 1e-4
"""0.04 % of the prior is below it."""
LEAST_SIGMA_Y: Final = 0.01 / math.sqrt(12)
FARTHEST: Final = 6.0
"""The grid ends at this many standard deviations of a prior."""
WHOLE: Final[Spans] = (
    (math.log(LEAST_SIGMA_A), math.log(FARTHEST * SIGMA_A_SCALE)),
    (math.log(LEAST_SIGMA_Y), math.log(FARTHEST * SIGMA_Y_SCALE)),
)
NUM_POINTS: Final = 32
"""Grid points on each axis."""
NUM_ZOOMS: Final = 4
NEGLIGIBLE: Final = 24.0
"""A point is left out if its log weight is this far below the largest (a factor of 4e-11)."""


@dataclass(frozen=True, slots=True)
class ScoreGroup:
    """Scores of one group: their number, their mean, and the sum of their squared deviations from it."""

    count: int
    mean: float
    squares: float

    @classmethod
    def of(cls, seen: RunningMean, *, pending: int = 0) -> "ScoreGroup":
        """The scores seen, plus one score equal to their mean for each pending request."""
        return cls(seen.count + pending, seen.mean, seen.squares)


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """The posterior, as weights of pairs of sigmas. Each array has one entry for each pair."""

    sigma_a: Floats
    sigma_y: Floats
    mu: Floats
    """Mean of mu given the sigmas."""
    mu_variance: Floats
    cumulative: Floats
    """Cumulative weights of the pairs; the last is 1."""

    def draw_group(self, group: ScoreGroup, rng: Variates) -> float:
        """Draw the next score of a group that was in the fit: one uniform, one normal."""
        i = self._pair(rng)
        sigma_a, sigma_y = float(self.sigma_a[i]), float(self.sigma_y[i])
        own = sigma_y * sigma_y / group.count
        trust = sigma_a * sigma_a / (sigma_a * sigma_a + own)
        mean = (1 - trust) * float(self.mu[i]) + trust * group.mean
        variance = (1 - trust) ** 2 * float(self.mu_variance[i]) + trust * own + sigma_y * sigma_y
        return mean + math.sqrt(variance) * rng.standard_normal()

    def draw_new(self, rng: Variates) -> float:
        """Draw the first score of an unknown group: one uniform, one normal."""
        i = self._pair(rng)
        variance = float(self.mu_variance[i] + self.sigma_a[i] ** 2 + self.sigma_y[i] ** 2)
        return float(self.mu[i]) + math.sqrt(variance) * rng.standard_normal()

    def _pair(self, rng: Variates) -> int:
        found = int(np.searchsorted(self.cumulative, rng.random(), side="right"))
        return min(found, len(self.cumulative) - 1)


def draw_prior(mean: float, rng: Variates) -> float:
    """Draw a score when no score is known: three normals."""
    sigma_a, sigma_y = SIGMA_A_SCALE * abs(rng.standard_normal()), SIGMA_Y_SCALE * abs(rng.standard_normal())
    return mean + math.sqrt(MU_SD**2 + sigma_a**2 + sigma_y**2) * rng.standard_normal()


def fitted(groups: Sequence[ScoreGroup], *, mean: float) -> Hierarchy:
    """The posterior given the scores of at least one group; `mean` is the prior mean of mu."""
    seen = _Seen.of(groups, mean)
    spans = WHOLE
    log_weight, mu, mu_variance = seen.weigh(spans)
    for _ in range(NUM_ZOOMS):
        closer = _closer(spans, log_weight.reshape(NUM_POINTS, NUM_POINTS))
        if closer == spans:
            break
        spans = closer
        log_weight, mu, mu_variance = seen.weigh(spans)
    sigma_a, sigma_y = _pairs(spans)
    cumulative = np.cumsum(np.exp(log_weight - log_weight.max()))
    return Hierarchy(sigma_a, sigma_y, mu, mu_variance, cumulative / cumulative[-1])


def _pairs(spans: Spans) -> tuple[Floats, Floats]:
    """Both sigmas of every pair of the grid, sigma_a in the outer order."""
    a, y = (np.exp(np.linspace(low, high, NUM_POINTS)) for low, high in spans)
    return np.repeat(a, NUM_POINTS), np.tile(y, NUM_POINTS)


def _closer(spans: Spans, log_weight: Floats) -> Spans:
    """The part of the grid with non-negligible weight; the same spans if that is most of the grid."""
    a, y = (_heavy(log_weight.max(axis=1 - axis), span) for axis, span in enumerate(spans))
    return (a, y) if min(_length(a) / _length(spans[0]), _length(y) / _length(spans[1])) < 0.5 else spans


def _heavy(log_weight: Floats, span: Span) -> Span:
    """From the first to the last non-negligible point of an axis, plus one point on each side."""
    found = np.flatnonzero(log_weight > log_weight.max() - NEGLIGIBLE)
    step = _length(span) / (NUM_POINTS - 1)
    first, last = max(0, int(found[0]) - 1), min(NUM_POINTS - 1, int(found[-1]) + 1)
    return span[0] + first * step, span[0] + last * step


def _length(span: Span) -> float:
    return span[1] - span[0]


@dataclass(frozen=True, slots=True)
class _Seen:
    """Groups summed by their size; sums are of deviations from the prior mean."""

    size: Floats
    number: Floats
    total: Floats
    squares: Floats
    mean: float
    within: float
    """Sum of squared deviations within groups."""
    num_within: int
    """Number of scores minus number of groups."""

    @classmethod
    def of(cls, groups: Sequence[ScoreGroup], mean: float) -> "_Seen":
        counts = np.array([group.count for group in groups], np.float64)
        away = np.array([group.mean - mean for group in groups], np.float64)
        size, which = np.unique(counts, return_inverse=True)
        return cls(
            size,
            np.bincount(which).astype(np.float64),
            np.bincount(which, away).astype(np.float64),
            np.bincount(which, away * away).astype(np.float64),
            mean,
            sum(group.squares for group in groups),
            int(counts.sum()) - len(groups),
        )

    def weigh(self, spans: Spans) -> tuple[Floats, Floats, Floats]:
        """For each pair of the grid: its log weight, and the mean and variance of mu."""
        sigma_a, sigma_y = _pairs(spans)
        variance = sigma_a[:, None] ** 2 + sigma_y[:, None] ** 2 / self.size
        precision = 1 / MU_SD**2 + (self.number / variance).sum(axis=1)
        pull = (self.total / variance).sum(axis=1)
        between = (self.number * np.log(variance) + self.squares / variance).sum(axis=1)
        log_weight = -0.5 * (between - pull**2 / precision + np.log(precision))
        log_weight -= self.num_within * np.log(sigma_y) + 0.5 * self.within / sigma_y**2
        log_weight -= 0.5 * ((sigma_a / SIGMA_A_SCALE) ** 2 + (sigma_y / SIGMA_Y_SCALE) ** 2)
        log_weight += np.log(sigma_a) + np.log(sigma_y)
        return log_weight, self.mean + pull / precision, 1 / precision
