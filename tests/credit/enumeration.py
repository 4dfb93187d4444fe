"""Enumeration: the package's own enumerator, with several credits at once and in a choice of numbers.

`test_exact_gradients.py` shows for every credit that one order of exchangeable siblings stands for all of them.
"""

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any, Protocol

from ramify.core.tree import Tree
from ramify.credit import Forest, forest_of
from ramify.experiments.certify.decision_problem import PROBLEMS, DecisionProblem
from ramify.experiments.certify.gradient import (
    Census,
    Gradient,
    TokenSums,
    expected_gradient_of,
    rational,
    texts_of,
)
from ramify.experiments.certify.replay import outcomes

__all__ = [
    "MDP",
    "PROBLEMS",
    "Credit",
    "Draw",
    "Gradient",
    "Grow",
    "actions_of",
    "add_scores",
    "expected_gradient",
    "expected_gradients",
    "outcomes",
    "rational",
]

MDP = DecisionProblem
actions_of = texts_of


class Draw(Protocol):
    """Takes one draw by a law; `forked` says which draws belong to children of one fork."""

    def __call__(self, law: Sequence[Fraction], /) -> int: ...

    def forked(self, children: Sequence[Callable[[], None]]) -> None:
        """Grow these children, which draw by one law, each for itself."""
        ...


Grow = Callable[[Draw], Tree]
Credit = Callable[[Forest], Any]


def expected_gradients(
    grow: Grow,
    credits: Mapping[str, Credit],
    mdp: MDP,
    *,
    number: type[Fraction] | type[float] = Fraction,
    is_sorted: bool = False,
    forest_of: Callable[[Tree], Forest] = forest_of,
) -> dict[str, Gradient]:
    """For each credit: the expectation of sum over sampled tokens of coefficient * grad log pi.

    In rationals, where the credit needs no square root, or several times faster in floats.
    """
    census, total = Census(forest_of), Fraction(0)
    for probability, tree in outcomes(grow, is_sorted=is_sorted):
        total += probability
        census.add(probability, tree)
    assert total == 1, f"the probabilities of all outcomes sum to {total}, not 1"
    alike = list(census.alike.values())
    numbers = [rational(each.forest) if number is Fraction else each.forest for each in alike]
    return {
        name: expected_gradient_of(
            ((each, credit(forest).tolist()) for each, forest in zip(alike, numbers, strict=True)), mdp.probs
        )
        for name, credit in credits.items()
    }


def expected_gradient(grow: Grow, credit: Credit, mdp: MDP) -> Gradient:
    """The expectation of one credit's estimator, in rationals."""
    return expected_gradients(grow, {"credit": credit}, mdp)["credit"]


def add_scores(
    total: Gradient, laws: Mapping[str, Sequence[Any]], texts: Sequence[tuple[str, str]], coefficients: Sequence[Any]
) -> None:
    """Add coefficient * d log pi / d logit of every sampled token."""
    sums = TokenSums(laws, Fraction)
    for text, coefficient in zip(texts, coefficients, strict=True):
        sums.add(text, coefficient)
    for prefix, law in sums.gradient.items():
        total[prefix] = [one + other for one, other in zip(total[prefix], law, strict=True)]
