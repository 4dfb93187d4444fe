"""Coverage: the share of problems that a shape solves at a cost, predicted from a pilot's levels.

The model: along a path the chance of success either falls to 0 for good, at a mistake, or rises, so that its mean stays
what it was. How often it falls at a step follows from the share of the variance still to come that the pilot measured
for that step; how the problems' own chances differ, a beta law with their measured mean and variance. So nothing is
simulated. Real steps are less clear-cut; `docs/when-trees-pay.md` holds predictions against runs.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from ramify.planner.levels import Levels
from ramify.planner.shape import Shape

Array = npt.NDArray[np.float64]
NUM_CHANCES: Final = 512
"""Chances at which the law of the problems is taken."""
LEAST: Final = 1e-3
"""Problems differ by this share of the variance of success at least, and leave so much to chance."""


@dataclass(frozen=True, slots=True)
class Successes:
    """One estimate of how success comes about, of L levels."""

    mean: float
    between: float
    """Variance of the problems' own chances."""
    variance: Array
    """(L,) of success, added by each level."""
    cost: Array
    """(L,)"""

    @classmethod
    def of(cls, levels: Levels, resample: int = 0) -> "Successes":
        """`levels` are settled."""
        mean, between = float(levels.mean[resample]), float(levels.between[resample])
        return cls(mean, between, levels.variance[resample], levels.cost[resample])

    def chances(self) -> tuple[Array, Array]:
        """(NUM_CHANCES,) chances of problems, and how much of the law lies about each: a beta law, taken at the angles
        whose squared sines they are, so that its ends are finite."""
        coin = self.mean * (1 - self.mean)
        if coin <= 0:
            return np.full(1, self.mean), np.ones(1)
        precision = 1 / min(max(self.between / coin, LEAST), 1 - LEAST) - 1
        angles = (np.arange(NUM_CHANCES) + 0.5) * np.pi / 2 / NUM_CHANCES
        chances = np.sin(angles) ** 2
        a, b = self.mean * precision, (1 - self.mean) * precision
        logs = (2 * a - 1) * np.log(np.sin(angles)) + (2 * b - 1) * np.log(np.cos(angles))
        weights = np.exp(logs - logs.max())
        return chances, weights / weights.sum()

    @property
    def shares(self) -> Array:
        """(L,) of the variance that is still to come at each level, the part that it adds; 1 at the last."""
        left = self.variance[::-1].cumsum()[::-1]
        shares = np.divide(self.variance, left, out=np.zeros_like(left), where=left > 0)
        return np.append(shares[:-1], 1.0)


def coverage(successes: Successes, shape: Shape, budget: float) -> float:
    """Share of problems with a success, where stems of `shape` are grown until `budget` is spent on each."""
    behind = shape.behind(len(successes.cost))
    stems = budget / float((successes.cost * shape.widths(len(successes.cost))).sum())
    chances, weights = successes.chances()
    return float(1 - weights @ _none_of(_misses(chances, successes.shares, behind), stems))


def _misses(chance: Array, shares: Array, behind: tuple[float, ...]) -> Array:
    """Chance that nothing below one node succeeds, when its first level begins at `chance`."""
    share, *others = shares
    risen = chance + share * (1 - chance)
    is_alive = np.divide(chance, risen, out=np.zeros_like(chance), where=risen > 0)
    if not others:
        return 1 - is_alive
    return 1 - is_alive + is_alive * _none_of(_misses(risen, np.array(others), behind[1:]), behind[0])


def _none_of(misses: Array, number: float) -> Array:
    """Chance that `number` independent tries all miss; between whole numbers a coin decides."""
    low = int(number)
    return misses**low * (1 - (number - low) * (1 - misses))
