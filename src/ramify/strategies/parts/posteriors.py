"""Posteriors: what a search believes of the mean score of one choice, after the scores it saw, and draws from that.

A Gaussian of unknown mean and variance under a normal-inverse-gamma prior, and a Beta that takes scores between 0 and 1
as fractions of a success. Both cost the same however many scores they saw: running statistics (Welford) in place of
lists. A pending request counts as a score equal to the present mean, so that a choice in flight is believed in more and
not better. Nothing here draws but `draw`.

Source: SakanaAI/treequest src/treequest/algos/ab_mcts_a/prob_state.py, multi_armed_bandit_ucb.py (arXiv 2503.04412).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import sqrt
from typing import Final, Protocol

from ramify.core.errors import ConfigError
from ramify.strategies.parts.draws import Draws

SMALLEST: Final = 2.0**-1022
"""Least value of a gamma draw: one of a small shape may come out as 0."""


class Variates(Draws, Protocol):
    """Draws that follow a distribution; a `numpy.random.Generator` is one."""

    def standard_gamma(self, shape: float, /) -> float:
        """Gamma of `shape` and scale 1."""
        ...

    def standard_normal(self) -> float:
        """Normal of mean 0 and variance 1."""
        ...

    def beta(self, a: float, b: float, /) -> float: ...


@dataclass(slots=True, eq=False)
class RunningMean:
    """Number, mean and sum of squared deviations of the numbers seen (Welford)."""

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
    """Normal-inverse-gamma: the variance is nu tau_square / (2 Gamma(nu/2)), the mean Normal(m, variance / kappa).

    Defaults are treequest's. Where scores are between 0 and 1 its m of 0 is pessimistic, so that a search begins wide.
    """

    m: float = 0.0
    kappa: float = 1.0
    nu: float = 1.0
    tau_square: float = 0.1

    def __post_init__(self) -> None:
        if not (math.isfinite(self.m) and all(0 < x < math.inf for x in (self.kappa, self.nu, self.tau_square))):
            raise ConfigError(f"kappa, nu and tau_square are above 0 and m finite, got {self!r}")

    def around(self, mean: float) -> "GaussianPrior":
        """The same prior with another mean."""
        return GaussianPrior(mean, self.kappa, self.nu, self.tau_square)

    def posterior(self) -> "Gaussian":
        """A posterior that has seen nothing."""
        return Gaussian(self)


@dataclass(frozen=True, slots=True)
class BetaPrior:
    """Beta(a, b); Jeffreys' by default, as in treequest."""

    a: float = 0.5
    b: float = 0.5

    def __post_init__(self) -> None:
        if not (0 < self.a < math.inf and 0 < self.b < math.inf):
            raise ConfigError(f"a and b of a Beta are above 0, got {self!r}")

    def around(self, mean: float) -> "BetaPrior":
        """The prior of weight 1 with that mean."""
        return BetaPrior(mean, 1 - mean)

    def posterior(self) -> "Beta":
        """A posterior that has seen nothing."""
        return Beta(self.a, self.b)


class Gaussian:
    """A mean under a normal-inverse-gamma prior. Mutated by `observe` and `reserve`.

    Each score makes the posterior the prior of the next: Welford's update, begun with the prior's weight.
    """

    __slots__ = ("_kappa", "_nu", "_nu_tau", "_shape", "_spread", "mean", "pending")

    def __init__(self, prior: GaussianPrior) -> None:
        self.mean, self._kappa, self._nu = prior.m, prior.kappa, prior.nu
        self._nu_tau = prior.nu * prior.tau_square
        self.pending = 0
        self.reserve(0)

    def observe(self, score: float, num_answered: int = 0) -> None:
        """Learn a score, which that many pending requests stood for."""
        away = score - self.mean
        self._kappa += 1
        self._nu += 1
        self.mean += away / self._kappa
        self._nu_tau += away * (score - self.mean)
        self.pending -= num_answered
        self._shape = (self._nu + self.pending) / 2
        self._spread = self._nu_tau / (2 * (self._kappa + self.pending))

    def reserve(self, number: int) -> None:
        """Add pending requests, or take them back: equal to the mean, they add to kappa and nu and to no sum."""
        self.pending += number
        self._shape = (self._nu + self.pending) / 2
        self._spread = self._nu_tau / (2 * (self._kappa + self.pending))

    @property
    def parameters(self) -> GaussianPrior:
        """Of the posterior, pending requests left out."""
        return GaussianPrior(self.mean, self._kappa, self._nu, self._nu_tau / self._nu)

    def draw(self, rng: Variates) -> float:
        """One gamma, then one normal: a mean that may be the true one."""
        return Gaussian.draw_all((self,), rng)[0]

    @staticmethod
    def draw_all(posteriors: "Sequence[Gaussian]", rng: Variates) -> list[float]:
        """One draw of each, in order."""
        standard_gamma, standard_normal = rng.standard_gamma, rng.standard_normal
        drawn: list[float] = []
        for posterior in posteriors:
            gamma = standard_gamma(posterior._shape)
            if gamma < SMALLEST:
                gamma = SMALLEST
            drawn.append(posterior.mean + sqrt(posterior._spread / gamma) * standard_normal())
        return drawn


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
        """Learn a score, which that many pending requests stood for."""
        self.a += score
        self.b += 1 - score
        self.pending -= num_answered

    def reserve(self, number: int) -> None:
        """Add pending requests, or take them back."""
        self.pending += number

    def draw(self, rng: Variates) -> float:
        """One Beta: a mean that may be the true one."""
        return Beta.draw_all((self,), rng)[0]

    @staticmethod
    def draw_all(posteriors: "Sequence[Beta]", rng: Variates) -> list[float]:
        """One draw of each, in order."""
        beta = rng.beta
        drawn: list[float] = []
        for posterior in posteriors:
            a, b = posterior.a, posterior.b
            if posterior.pending:
                larger = 1 + posterior.pending / (a + b)
                a, b = a * larger, b * larger
            drawn.append(beta(a, b))
        return drawn


Posterior = Gaussian | Beta
"""What is believed of one choice."""


def ucb1(mean: float, count: int, total: int, *, exploration: float) -> float:
    """mean + exploration sqrt(ln(all tries) / tries); infinity for a choice never tried (UCB1)."""
    return mean + exploration * math.sqrt(math.log(total) / count) if count else math.inf
