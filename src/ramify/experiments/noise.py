"""Noise: the cost of a policy gradient, |g|^2 times sampled tokens, for several presets on the same problems.

A budget of tokens pays for a number of trees. The mean of their gradients has the error E|g|^2 over that number (minus
the square of the true gradient, which is the same for all exact presets). So the error at equal tokens is E|g|^2 times
the tokens of a tree. Norms are heavy-tailed: a few problems dominate a plain mean. So each problem's value is capped,
with the same cap for all presets, and presets are compared by ratios paired by problem. Intervals are percentile
bootstraps over problems with a fixed cap. This file only computes: gradients are made elsewhere.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ramify.planner.interval import Interval

Doubles_P = npt.NDArray[np.float64]
TAILS = (0.025, 0.975)
NUM_RESAMPLES: Final = 4000


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientSample:
    """The gradients of one problem's trees under one preset."""

    second_moment: float
    """Mean of |g|^2."""
    variance: float | None
    """Variance of g, summed over its coordinates: the second moment minus the mean product of two different trees'
    gradients. That product is an unbiased estimate of the square of the true gradient. None = a single tree."""
    tokens: float
    """Mean decode tokens of a tree."""
    zero: float
    """Share of the trees whose gradient is 0."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A mean over problems, multiplied by the mean tokens of a tree."""

    raw: float
    """From the uncapped values. Do not compare presets by it."""
    capped: Interval
    """From the values capped at `cap`."""
    cap: float
    """The same for all presets."""
    ratio: Interval | None
    """`capped` divided by the first preset's, paired by problem. None = this is the first, or the first's is 0."""

    @property
    def word(self) -> str:
        """`more` or `less` than the first preset; `equal` if the ratio's interval contains 1 or there is no ratio."""
        return "equal" if self.ratio is None else ("equal", "more", "less")[self.ratio.sign(1)]


@dataclass(frozen=True, slots=True)
class NoiseLine:
    """One preset's row of the report."""

    name: str
    tokens: float
    """Mean decode tokens per tree."""
    zero: float
    """Share of trees whose gradient is 0."""
    second_moment: Figure
    variance: Figure | None
    """None = some problem has a single tree."""


def sample(gradients: Sequence[npt.NDArray[np.floating[Any]]], tokens: Sequence[int]) -> GradientSample:
    """The sample of one problem: (D,) gradients and decode tokens of its trees."""
    norms = [_square(gradient) for gradient in gradients]
    second, number = fmean(norms), len(norms)
    mean = np.mean(np.asarray(gradients, np.float64), axis=0)
    return GradientSample(
        second_moment=second,
        variance=max(0.0, number / (number - 1) * (second - _square(mean))) if number > 1 else None,
        tokens=fmean(tokens),
        zero=fmean(norm == 0 for norm in norms),
    )


def lines(samples: Mapping[str, Sequence[GradientSample]], *, quantile: float) -> list[NoiseLine]:
    """One line per preset, in order, each compared with the first.

    `samples`: preset -> samples of the same problems in the same order, at least one. `quantile`: the cap is this
    quantile of the values above 0; with 1 nothing is capped.
    """
    tokens = {name: np.array([each.tokens for each in of]) for name, of in samples.items()}
    second = {name: np.array([each.second_moment for each in of]) for name, of in samples.items()}
    variances = {name: [each.variance for each in of if each.variance is not None] for name, of in samples.items()}
    is_known = all(len(variances[name]) == len(of) for name, of in samples.items())
    of_second = _figures(second, tokens, quantile)
    of_variance = _figures({n: np.array(v) for n, v in variances.items()}, tokens, quantile) if is_known else {}
    return [
        NoiseLine(
            name=name,
            tokens=float(tokens[name].mean()),
            zero=fmean(each.zero for each in of),
            second_moment=of_second[name],
            variance=of_variance.get(name),
        )
        for name, of in samples.items()
    ]


def cap_of(values: Iterable[float], quantile: float) -> float:
    """The quantile of the values above 0; 0 if there are none."""
    above = [value for value in values if value > 0]
    return float(np.quantile(above, quantile)) if above else 0.0


def _figures(values: Mapping[str, Doubles_P], tokens: Mapping[str, Doubles_P], quantile: float) -> Mapping[str, Figure]:
    cap = cap_of(np.concatenate(list(values.values())).tolist(), quantile)
    capped = {name: np.minimum(of, cap) for name, of in values.items()}
    first = next(iter(capped))
    return {
        name: Figure(
            raw=float(of.mean() * tokens[name].mean()),
            capped=_product(capped[name], tokens[name]),
            cap=cap,
            ratio=None
            if name == first or not capped[first].any()
            else _ratio((capped[name], tokens[name]), (capped[first], tokens[first])),
        )
        for name, of in values.items()
    }


def _product(values: Doubles_P, tokens: Doubles_P) -> Interval:
    low, high = np.quantile(_resampled(values, tokens), TAILS)
    return Interval(float(values.mean() * tokens.mean()), float(low), float(high))


def _ratio(one: tuple[Doubles_P, Doubles_P], other: tuple[Doubles_P, Doubles_P]) -> Interval:
    """Ratio of two products of means. A resample in which both are 0 shows no difference and counts as 1."""
    above, below = _resampled(*one), _resampled(*other)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = np.where((above == 0) & (below == 0), 1.0, above / below)
    low, high = np.quantile(ratios, TAILS, method="inverted_cdf")
    value = (one[0].mean() * one[1].mean()) / (other[0].mean() * other[1].mean())
    return Interval(float(value), float(low), float(high))


def _resampled(values: Doubles_P, tokens: Doubles_P) -> Doubles_P:
    """(NUM_RESAMPLES,) products of the two means, both over the same resampled problems, which are always the same."""
    picks = np.random.default_rng(0).integers(len(values), size=(NUM_RESAMPLES, len(values)))
    return values[picks].mean(axis=1) * tokens[picks].mean(axis=1)


def _square(values: npt.NDArray[np.floating[Any]]) -> float:
    return float(np.square(values, dtype=np.float64).sum())
