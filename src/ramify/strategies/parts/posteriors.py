"""Posteriors: what a search believes about the mean score of a choice, given the scores it saw, and draws from that
belief.

There are two: a Gaussian of unknown mean and variance under a normal-inverse-gamma prior, and a Beta that treats a
score between 0 and 1 as a fraction of a success. Their cost does not grow with the number of scores: they keep running
statistics (Welford), not lists. A pending request counts as a score equal to the current mean. So a choice in flight
looks more certain, but not better. Only `draw`, `draw_all`, `draw_array` and `Posteriors.largest` draw.

Source: SakanaAI/treequest src/treequest/algos/ab_mcts_a/prob_state.py, multi_armed_bandit_ucb.py (arXiv 2503.04412).
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import sqrt
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from ramify.core.errors import ConfigError
from ramify.strategies.parts.draws import Draws

Floats = NDArray[np.float64]
SMALLEST: Final = 2.0**-1022
"""Lower bound of a gamma draw, because a draw with a small shape may be 0."""
FEW: Final = 16
"""So many posteriors are drawn from one after another as fast as all at once (measured: 14 Gaussians, 20 Betas)."""


class Variates(Draws, Protocol):
    """Draws from distributions; a `numpy.random.Generator` is one."""

    def standard_gamma(self, shape: Any, /) -> Any:
        """Gamma of `shape` and scale 1; for an array of shapes, an array."""
        ...

    def standard_normal(self, size: Any = None, /) -> Any:
        """Normal of mean 0 and variance 1; an array of `size` of them, if it is given."""
        ...

    def beta(self, a: Any, b: Any, /) -> Any:
        """Beta of `a` and `b`; for arrays, an array."""
        ...


@dataclass(slots=True, eq=False)
class RunningMean:
    """Count, mean and sum of squared deviations of the numbers seen (Welford)."""

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0

    def observe(self, x: float) -> None:
        self.count += 1
        away = x - self.mean
        self.mean += away / self.count
        self.squares += away * (x - self.mean)


@dataclass(frozen=True, slots=True)
class GaussianPrior:
    """Normal-inverse-gamma: the variance is nu tau_square / (2 Gamma(nu/2)), the mean is Normal(m, variance / kappa).

    Defaults are treequest's. For scores between 0 and 1 its m of 0 is pessimistic, so a search starts wide.
    """

    m: float = 0.0
    """Prior mean of the scores."""
    kappa: float = 1.0
    """Weight of the prior mean, in scores; above 0."""
    nu: float = 1.0
    """Weight of the prior variance (degrees of freedom); above 0."""
    tau_square: float = 0.1
    """Scale of the prior variance; above 0."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.m) and all(0 < x < math.inf for x in (self.kappa, self.nu, self.tau_square))):
            raise ConfigError(f"kappa, nu and tau_square are above 0 and m finite, got {self!r}")

    def around(self, mean: float) -> "GaussianPrior":
        """The same prior with another mean."""
        return GaussianPrior(mean, self.kappa, self.nu, self.tau_square)

    def posterior(self) -> "Gaussian":
        """A posterior without any scores yet."""
        return Gaussian(self)


@dataclass(frozen=True, slots=True)
class BetaPrior:
    """Beta(a, b); Jeffreys' by default, as in treequest."""

    a: float = 0.5
    """Prior successes; above 0."""
    b: float = 0.5
    """Prior failures; above 0."""

    def __post_init__(self) -> None:
        if not (0 < self.a < math.inf and 0 < self.b < math.inf):
            raise ConfigError(f"a and b of a Beta are above 0, got {self!r}")

    def around(self, mean: float) -> "BetaPrior":
        """The prior of weight 1 with this mean."""
        return BetaPrior(mean, 1 - mean)

    def posterior(self) -> "Beta":
        """A posterior without any scores yet."""
        return Beta(self.a, self.b)


class Gaussian:
    """A mean under a normal-inverse-gamma prior. Mutated by `observe` and `reserve`.

    After each score, the posterior is the prior for the next: Welford's update, starting with the prior's weight.
    """

    __slots__ = ("_kappa", "_nu", "_nu_tau", "_shape", "_spread", "mean", "pending")

    def __init__(self, prior: GaussianPrior) -> None:
        self.mean, self._kappa, self._nu = prior.m, prior.kappa, prior.nu
        self._nu_tau = prior.nu * prior.tau_square
        self.pending = 0
        self.reserve(0)

    def observe(self, score: float, num_answered: int = 0) -> None:
        """Learn a score that answers `num_answered` pending requests."""
        away = score - self.mean
        self._kappa += 1
        self._nu += 1
        self.mean += away / self._kappa
        self._nu_tau += away * (score - self.mean)
        self.pending -= num_answered
        self._shape = (self._nu + self.pending) / 2
        self._spread = self._nu_tau / (2 * (self._kappa + self.pending))

    def reserve(self, number: int) -> None:
        """Add pending requests, or remove them. They equal the mean, so they add to kappa and nu but to no sum."""
        self.pending += number
        self._shape = (self._nu + self.pending) / 2
        self._spread = self._nu_tau / (2 * (self._kappa + self.pending))

    @property
    def parameters(self) -> GaussianPrior:
        """Parameters of the posterior without pending requests."""
        return GaussianPrior(self.mean, self._kappa, self._nu, self._nu_tau / self._nu)

    def draw(self, rng: Variates) -> float:
        """A plausible true mean: draws one gamma, then one normal."""
        return Gaussian.draw_all((self,), rng)[0]

    @staticmethod
    def draw_all(posteriors: "Sequence[Gaussian]", rng: Variates) -> list[float]:
        """One draw from each, in order."""
        standard_gamma, standard_normal = rng.standard_gamma, rng.standard_normal
        drawn: list[float] = []
        for posterior in posteriors:
            gamma = standard_gamma(posterior._shape)
            if gamma < SMALLEST:
                gamma = SMALLEST
            drawn.append(posterior.mean + sqrt(posterior._spread / gamma) * standard_normal())
        return drawn

    def row(self) -> tuple[float, float, float]:
        """What `draw_array` needs of it."""
        return self.mean, self._shape, self._spread

    @staticmethod
    def draw_array(rows: Floats, rng: Variates) -> Floats:
        """One draw from each column of `rows`, (3, n): all gammas, then all normals."""
        mean, shape, spread = rows
        gamma = np.maximum(rng.standard_gamma(shape), SMALLEST)
        return mean + np.sqrt(spread / gamma) * rng.standard_normal(len(mean))


@dataclass(slots=True, eq=False)
class Beta:
    """A mean under a Beta prior; a score x counts as x successes and 1 - x failures."""

    a: float
    b: float
    pending: int = field(default=0, init=False)

    @property
    def mean(self) -> float:
        return self.a / (self.a + self.b)

    def observe(self, score: float, num_answered: int = 0) -> None:
        """Learn a score that answers `num_answered` pending requests."""
        self.a += score
        self.b += 1 - score
        self.pending -= num_answered

    def reserve(self, number: int) -> None:
        """Add pending requests, or remove them."""
        self.pending += number

    def draw(self, rng: Variates) -> float:
        """A plausible true mean: draws one Beta."""
        return Beta.draw_all((self,), rng)[0]

    @staticmethod
    def draw_all(posteriors: "Sequence[Beta]", rng: Variates) -> list[float]:
        """One draw from each, in order."""
        beta = rng.beta
        drawn: list[float] = []
        for posterior in posteriors:
            a, b, _ = posterior.row()
            drawn.append(beta(a, b))
        return drawn

    def row(self) -> tuple[float, float, float]:
        """What `draw_array` needs of it."""
        if not self.pending:
            return self.a, self.b, 0.0
        larger = 1 + self.pending / (self.a + self.b)
        return self.a * larger, self.b * larger, 0.0

    @staticmethod
    def draw_array(rows: Floats, rng: Variates) -> Floats:
        """One draw from each column of `rows`, (3, n)."""
        return rng.beta(rows[0], rows[1])


Posterior = Gaussian | Beta
"""The belief about one choice."""


class Posteriors:
    """Posteriors of one family that compete: `largest` draws from each. Mutated by `append` and `changed`.

    Up to `FEW` are drawn from one after another, in order; more all at once, from arrays of their parameters.
    """

    __slots__ = ("_all", "_rows")

    def __init__(self) -> None:
        self._all: list[Any] = []
        self._rows: Floats = np.empty((4, 0))
        """A column each: its `row` and how many requests are pending, with room for more. Empty for a few."""

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Posterior]:
        return iter(self._all)

    def __getitem__(self, index: int) -> Posterior:
        return self._all[index]

    def append(self, posterior: Posterior) -> None:
        self._all.append(posterior)
        number = len(self._all)
        if number > FEW and number > self._rows.shape[1]:
            self._rows = np.empty((4, 2 * number))
            for index in range(number):
                self.changed(index)
        else:
            self.changed(number - 1)

    def changed(self, index: int) -> None:
        """Take note that the posterior at `index` has learnt a score, or has more or fewer pending requests."""
        if len(self._all) > FEW:
            posterior = self._all[index]
            self._rows[:, index] = (*posterior.row(), posterior.pending)

    def largest(self, rng: Variates, *, cap: float) -> tuple[int, float] | None:
        """Draw from each; the index of the largest draw (the first of equal ones), and the draw. Those with `cap`
        pending requests or more are left out; None = all are."""
        if len(self._all) > FEW:
            rows = self._rows[:, : len(self._all)]
            drawn = self._all[0].draw_array(rows[:3], rng)
            found = int(np.where(rows[3] < cap, drawn, -np.inf).argmax())
            is_free = rows[3, found] < cap
        elif self._all:
            drawn = self._all[0].draw_all(self._all, rng)
            free = [i for i, posterior in enumerate(self._all) if posterior.pending < cap]
            found, is_free = max(free, key=drawn.__getitem__, default=0), bool(free)
        else:
            return None
        return (found, float(drawn[found])) if is_free else None


def ucb1(mean: float, count: int, total: int, *, exploration: float) -> float:
    """mean + exploration sqrt(ln(all tries) / tries); infinity for a choice that was never tried (UCB1)."""
    return mean + exploration * math.sqrt(math.log(total) / count) if count else math.inf
