"""Sampled: the check of a strategy whose trees are too many to enumerate, or that draws continuous numbers.

It estimates each component of the gradient from independent trees, with intervals that hold for all of them together at
99 % (normal approximation, Bonferroni). It can refute a claim. It can never prove one.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from statistics import NormalDist
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ramify.experiments.certify.certificate import GradientComponent, Number, Verdict, components_of, is_refuted
from ramify.experiments.certify.decision_problem import DecisionProblem
from ramify.experiments.certify.gradient import Coefficients, Gradient, TokenSums

CONFIDENCE: Final = 0.99
MIN_SEEN: Final = 100
"""A component that fewer trees contribute to has no interval: the normal approximation would not hold."""
Vector = npt.NDArray[np.float64]
"""(num_components,)"""


class SampledDraws:
    """Draws by a generator. `num_outcomes`: Knuth's estimate of how many lists of draws there are: the product of the
    choices that each draw had."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        self._laws: dict[int, tuple[Sequence[Fraction], Vector]] = {}
        self.num_outcomes = 1.0

    def __call__(self, law: Sequence[Fraction], /) -> int:
        known = self._laws.get(id(law))
        if known is None:
            known = self._laws[id(law)] = law, np.cumsum([float(p) for p in law])
        self.num_outcomes *= len(law)
        return min(int(np.searchsorted(known[1], self._rng.random(), side="right")), len(law) - 1)


@dataclass(slots=True)
class TreeSample:
    """Sums of one gradient estimate a tree."""

    problem: DecisionProblem
    num_trees: int = 0
    total: Any = 0.0
    products: Any = 0.0
    """(num_components, num_components) sum of the estimates' outer products."""
    num_seen: Any = 0
    """(num_components,) trees whose estimate is not 0 there."""

    def add(self, texts: Sequence[tuple[str, str]], coefficients: Coefficients) -> None:
        sums = TokenSums(self.problem.probs, float)
        for text, coefficient in zip(texts, coefficients, strict=True):
            sums.add(text, coefficient)
        estimate = _flat(sums.gradient)
        self.num_trees += 1
        self.total = self.total + estimate
        self.products = self.products + np.outer(estimate, estimate)
        self.num_seen = self.num_seen + (estimate != 0)

    def judged(self) -> tuple[Verdict, Number | None, tuple[GradientComponent, ...]]:
        """not_refuted, scale_not_refuted with the factor, or biased; and the components with their intervals."""
        mean, covariance = self._moments()
        expected = _flat(self.problem.gradient)
        half = self._half_widths(covariance)
        components = tuple(
            each
            if math.isnan(width)
            else replace(each, low=float(each.estimate) - width, high=float(each.estimate) + width)
            for each, width in zip(self._components(mean), half.tolist(), strict=True)
        )
        if not any(map(is_refuted, components)):
            return "not_refuted", None, components
        scale = float(mean @ expected / (expected @ expected))
        if scale > 0 and not self._is_scale_refuted(mean, covariance, expected):
            return "scale_not_refuted", scale, components
        return "biased", None, components

    def _moments(self) -> tuple[Vector, Vector]:
        mean = self.total / self.num_trees
        covariance = (self.products / self.num_trees - np.outer(mean, mean)) / max(1, self.num_trees - 1)
        return mean, covariance

    def _half_widths(self, covariance: Vector) -> Vector:
        is_seen = np.asarray(self.num_seen) >= MIN_SEEN
        tail = (1 - CONFIDENCE) / 2 / max(1, int(is_seen.sum()))
        z = NormalDist().inv_cdf(1 - tail)
        return np.where(is_seen, z * np.sqrt(np.maximum(np.diag(covariance), 0)), np.nan)

    def _is_scale_refuted(self, mean: Vector, covariance: Vector, expected: Vector) -> bool:
        """Whether what is left of the estimate beside the direction of the gradient differs from 0."""
        beside = np.eye(len(expected)) - np.outer(expected, expected) / (expected @ expected)
        half = self._half_widths(beside @ covariance @ beside)
        rest = np.abs(beside @ mean)
        return bool((rest > half + 1e-12)[~np.isnan(half)].any())

    def _components(self, mean: Vector) -> tuple[GradientComponent, ...]:
        values, gradient = iter(mean.tolist()), Gradient()
        for prefix, law in self.problem.gradient.items():
            gradient[prefix] = [next(values) for _ in law]
        return components_of(gradient, self.problem.gradient)


def _flat(gradient: Mapping[str, Sequence[Any]]) -> Vector:
    return np.array([float(x) for law in gradient.values() for x in law])
