"""Interval: a figure with its interval over problems. Plans, comparisons and noise all use it."""

import math
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
CONFIDENCE: Final = 0.95


@dataclass(frozen=True, slots=True)
class Interval:
    """A figure and its 95 % interval by bootstrap over problems. An end may be infinite; NaN = nothing is known."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, resamples: Array) -> "Interval":
        """`resamples` (R,): the first value is the figure itself."""
        tail = (1 - CONFIDENCE) / 2
        low, high = np.nanquantile(resamples, (tail, 1 - tail)) if not np.isnan(resamples).all() else (np.nan, np.nan)
        return cls(float(resamples[0]), float(low), float(high))

    @classmethod
    def between(cls, least: Array, most: Array) -> "Interval":
        """The figure and the lower end from `least`, (R,) as in `of`; the upper end from `most`."""
        return replace(cls.of(least), high=cls.of(most).high)

    def widened(self, error: float) -> "Interval":
        """With an independent standard error beside that of the problems."""
        half = NormalDist().inv_cdf((1 + CONFIDENCE) / 2) * error
        low, high = math.hypot(self.value - self.low, half), math.hypot(self.high - self.value, half)
        return replace(self, low=self.value - low, high=self.value + high)

    def sign(self, even: float = 0.0) -> Literal[-1, 0, 1]:
        """1 if the whole interval is above `even`, -1 if it is below, 0 otherwise."""
        return 1 if self.low > even else -1 if self.high < even else 0

    @property
    def word(self) -> Literal["more", "fewer", "equal"]:
        """The sign of a difference in words."""
        return ("equal", "more", "fewer")[self.sign()]
