"""Exactness: fails a test whose strategy and credit are not an exact policy gradient on the decision problems."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ramify.core.strategy import Strategy
from ramify.credit import Forest
from ramify.experiments.certify import PROBLEMS, Certificate, CertifyLimits, DecisionProblem, certify
from ramify.experiments.certify.reductions import SUM
from ramify.testing.contracts.rules import BrokenRule


def check_exact(
    strategy: str | type[Strategy],
    credit: str | Callable[[Forest], Any],
    *,
    options: Mapping[str, Any] | None = None,
    problems: Sequence[str | DecisionProblem] = tuple(PROBLEMS),
    reduction: str = SUM,
    allows_scaled: bool = False,
    limits: CertifyLimits = CertifyLimits(),  # noqa: B008 - frozen
) -> list[Certificate]:
    """Raise unless the strategy with this credit is an exact policy gradient on every problem; else return the
    certificates. `allows_scaled`: one positive factor for all of a problem's components is allowed, too.

    Arguments are those of `certify`. Choose options that make small trees: trees that are sampled, not enumerated, are
    never exact. Raises `BrokenRule`, an `AssertionError`, with the worst component.
    """
    allowed = ("exact", "scaled") if allows_scaled else ("exact",)
    found: list[Certificate] = []
    for problem in problems:
        one = certify(strategy, credit, options=options, problem=problem, reduction=reduction, limits=limits)
        if one.verdict not in allowed:
            raise BrokenRule(
                f"strategy {one.strategy} with credit {one.credit} on {one.problem}: {one.text} ({one.tested})"
            )
        found.append(one)
    return found
