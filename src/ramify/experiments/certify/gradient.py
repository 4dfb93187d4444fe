"""Gradient: the expectation of a policy gradient estimator over all trees of an enumeration.

An estimator gives every sampled token a coefficient; the estimate is the sum of coefficient * grad log pi. Trees of
other tokens but an equal forest share their coefficients, so each forest is credited once. Sums are kept as fractions
for as long as the coefficients are.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from fractions import Fraction
from functools import cache, lru_cache
from typing import Any

import numpy as np

from ramify.core.tree import Tree
from ramify.credit.forest import STEM, Array_N, Forest
from ramify.experiments.certify.decision_problem import as_fraction

Gradient = dict[str, list[Any]]
"""Prefix -> component of each token's logit there."""
Coefficients = Sequence[Any]
"""(N,) of one forest: a number for all sampled tokens of a node, or a list with one for each of them."""


class WeightSum:
    """A sum of fractions, by their denominators: adding one is two additions of whole numbers."""

    def __init__(self) -> None:
        self._numerators: defaultdict[int, int] = defaultdict(int)

    def add(self, weight: Fraction) -> None:
        self._numerators[weight.denominator] += weight.numerator

    @property
    def total(self) -> Fraction:
        denominator = math.lcm(*self._numerators)
        return Fraction(sum(n * (denominator // d) for d, n in self._numerators.items()), denominator)


@dataclass(slots=True)
class AlikeTrees:
    """Trees of other tokens but an equal forest: every credit gives them the same coefficients."""

    forest: Forest
    tree: Tree
    """The first of them."""
    num_trees: int = 0
    weight: WeightSum = field(default_factory=WeightSum)
    """Probability of all of them."""
    tokens: list[defaultdict[tuple[str, str], WeightSum]] = field(default_factory=list)
    """For each node: what was sampled before it and there -> probability of the trees that have it so."""

    def add(self, probability: Fraction, texts: Sequence[tuple[str, str]]) -> None:
        if not self.tokens:
            self.tokens = [defaultdict(WeightSum) for _ in texts]
        self.num_trees += 1
        self.weight.add(probability)
        for sums, text in zip(self.tokens, texts, strict=True):
            sums[text].add(probability)


class Census:
    """All trees of an enumeration, those with an equal forest together."""

    def __init__(self, forest_of: Callable[[Tree], Forest]) -> None:
        self.alike: dict[tuple[object, ...], AlikeTrees] = {}
        self._forest_of = forest_of

    def add(self, probability: Fraction, tree: Tree) -> None:
        forest = self._forest_of(tree)
        key = content_of(forest)
        found = self.alike.get(key)
        if found is None:
            found = self.alike[key] = AlikeTrees(forest, tree)
        found.add(probability, texts_of(tree, forest))


def content_of(forest: Forest) -> tuple[object, ...]:
    """All fields of a forest: equal for forests of which every credit says the same."""
    values = (getattr(forest, each) for each in _FIELDS)
    return tuple(value.tobytes() if isinstance(value, np.ndarray) else repr(value) for value in values)


_FIELDS = tuple(each.name for each in fields(Forest))


def texts_of(tree: Tree, forest: Forest) -> list[tuple[str, str]]:
    """For each node of the forest: the tokens sampled before it on its path, and its own."""
    found: list[tuple[str, str]] = []
    for node, parent in zip(forest.nodes.tolist(), forest.parent.tolist(), strict=True):
        own = "".join(tree.codec.decode(s.ids.tolist()) for s in tree.segments(node) if s.is_sampled)
        found.append(("".join(found[parent]) if parent != STEM else "", own))
    return found


class TokenSums:
    """For each token at each prefix: the sum of its coefficients, by their probabilities."""

    def __init__(self, laws: Mapping[str, Sequence[Any]], number: Callable[[Any], Any]) -> None:
        self._laws = {prefix: [number(p) for p in law] for prefix, law in laws.items()}
        self._sums: Gradient = {prefix: [number(0)] * len(law) for prefix, law in laws.items()}
        self._number = number

    def add(self, text: tuple[str, str], coefficient: Any, weight: Any = 1) -> None:
        """Add the coefficient of each token of one node."""
        before, own = text
        each = coefficient if isinstance(coefficient, list) else [coefficient] * len(own)
        for i, token in enumerate(own):
            if each[i]:
                self._sums[before + own[:i]][int(token)] += weight * each[i]

    @property
    def gradient(self) -> Gradient:
        """The sum of coefficient * d log pi / d logit: one for the token taken, less the law."""
        return {
            prefix: [own - p * sum(sums) for own, p in zip(sums, self._laws[prefix], strict=True)]
            for prefix, sums in self._sums.items()
        }


def expected_gradient_of(
    alike: Iterable[tuple[AlikeTrees, Coefficients]], laws: Mapping[str, Sequence[Fraction]]
) -> Gradient:
    """The expectation over trees with these coefficients: as fractions if all of them are, else as floats."""
    pairs = [(each, list(coefficients)) for each, coefficients in alike]
    number = Fraction if all(is_rational(coefficients) for _, coefficients in pairs) else float
    sums = TokenSums(laws, number)
    for each, coefficients in pairs:
        for coefficient, texts in zip(coefficients, each.tokens, strict=True):
            for text, weight in texts.items():
                sums.add(text, coefficient, number(weight.total))
    return sums.gradient


def is_rational(coefficients: Coefficients) -> bool:
    return all(isinstance(each, Fraction | int) for each in coefficients)


@lru_cache(maxsize=10_000)
def rational(forest: Forest) -> Forest:
    """The forest with shares and rewards as the fractions they stand for; the same object for the same forest."""
    return replace(
        forest,
        share=_fractions(forest.share),
        reward=_fractions(forest.reward),
        balanced=None if forest.balanced is None else _fractions(forest.balanced),
        earned=None if forest.earned is None else _fractions(forest.earned),
    )


def _fractions(values: Array_N) -> Array_N:
    return np.array([x if x != x else _fraction(x) for x in values.tolist()], object)


_fraction = cache(as_fraction)
