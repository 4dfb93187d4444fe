"""Coverage: the share of problems that a shape solves at a given cost, predicted from a pilot's levels.

The model: along a path, the chance of success either falls to 0 for good, at a mistake, or rises, so that its mean
stays the same. The pilot measures which share of the remaining variance each step adds; from it follows how often the
chance falls at that step. The problems' own chances follow a beta distribution with the measured mean and variance. So
nothing is simulated. Real steps are less clear-cut: what the model leaves out is `MODEL_ERROR`, and
`docs/choose/measured-trees.md` compares predictions with runs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from ramify.planner.interval import Interval
from ramify.planner.levels import Levels
from ramify.planner.shape import Shape

Array = npt.NDArray[np.float64]
NUM_CHANCES: Final = 512
"""Number of chances at which the distribution of the problems is evaluated."""
NUM_PREDICTED: Final = 200
"""Number of resamples of the pilot for which coverage is predicted."""
MODEL_ERROR: Final = 0.014
"""Standard error of a predicted gain beside that of the pilot: what was left between runs and the mean prediction of
five pilots, for 15 shapes of three tasks, when the runs' own noise was taken off (`bench/plan_validation.py`)."""
LEAST: Final = 1e-3
"""Lower limit for the problems' share of the variance of success. The upper limit is 1 minus this."""


@dataclass(frozen=True, slots=True)
class Successes:
    """One estimate of how success comes about, with L levels."""

    mean: float
    between: float
    """Variance of the problems' own chances."""
    variance: Array
    """(L,) variance of success that each level adds."""
    cost: Array
    """(L,)"""

    @classmethod
    def of(cls, levels: Levels, resample: int = 0) -> "Successes":
        """`levels` must be settled."""
        mean, between = float(levels.mean[resample]), float(levels.between[resample])
        return cls(mean, between, levels.variance[resample], levels.cost[resample])

    def chances(self) -> tuple[Array, Array]:
        """(NUM_CHANCES,) chances of problems, and the share of the distribution around each. The beta distribution is
        evaluated at angles whose squared sines are the chances, so it stays finite at its ends."""
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
        """(L,) share of the remaining variance that each level adds; 1 at the last level."""
        left = self.variance[::-1].cumsum()[::-1]
        shares = np.divide(self.variance, left, out=np.zeros_like(left), where=left > 0)
        return np.append(shares[:-1], 1.0)


def successes(levels: Levels) -> tuple[Successes, ...]:
    """The first `NUM_PREDICTED` resamples of settled levels."""
    return tuple(Successes.of(levels, r) for r in range(min(NUM_PREDICTED, len(levels.mean))))


def more_solved(own: Sequence[Successes], whole: Sequence[Successes], shape: Shape, budget: float) -> Interval:
    """What coverage of `shape`, on its `own` paths, gains over chains on the `whole` ones, in each resample of a pilot.
    The interval is over problems."""
    solved = np.array([coverage(each, shape, budget) for each in own])
    return Interval.of(solved - np.array([coverage(each, Shape((1.0,)), budget) for each in whole]))


def coverage(successes: Successes, shape: Shape, budget: float) -> float:
    """Share of problems with a success, if stems (root branches) of `shape` are grown until `budget` is spent on each
    problem."""
    behind = shape.behind(len(successes.cost))
    stems = budget / float((successes.cost * shape.widths(len(successes.cost))).sum())
    chances, weights = successes.chances()
    return float(1 - weights @ _none_of(_misses(chances, successes.shares, behind), stems))


def _misses(chance: Array, shares: Array, behind: tuple[float, ...]) -> Array:
    """Chance that nothing below one node succeeds, if its first level begins at `chance`."""
    share, *others = shares
    risen = chance + share * (1 - chance)
    is_alive = np.divide(chance, risen, out=np.zeros_like(chance), where=risen > 0)
    if not others:
        return 1 - is_alive
    return 1 - is_alive + is_alive * _none_of(_misses(risen, np.array(others), behind[1:]), behind[0])


def _none_of(misses: Array, number: float) -> Array:
    """Chance that `number` independent tries all miss. If `number` is not whole, the last try happens with the
    remaining probability."""
    low = int(number)
    return misses**low * (1 - (number - low) * (1 - misses))
