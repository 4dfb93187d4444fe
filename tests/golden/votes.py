"""Checks of the goldens of votes and statistics. What only a golden asks for is computed here."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ramify.experiments.proportions import pass_at_k, wilson
from ramify.runner import votes

Input = Mapping[str, Any]


def vote(given: Input, mode: str | None) -> dict[str, Any]:
    answers, scores = given["answers"], given["scores"]
    classes = votes.classes_of(answers, str.__eq__)
    sums = votes.weighted_sums(classes, scores)
    return {
        "best_of_n": answers[votes.best(classes, scores)],
        "majority": answers[votes.majority(classes)],
        "weighted": answers[votes.weighted(classes, scores)],
        "weighted_sums": {answers[kind]: total for kind, total in sums.items()},
    }


def passed(given: Input, mode: str | None) -> dict[str, float]:
    return {"pass_at_k": pass_at_k(given["n"], given["c"], given["k"])}


def paired(given: Input, mode: str | None) -> dict[str, float]:
    """McNemar's exact test, two-sided: how probable a split at least as uneven is where both are equally good."""
    pairs = list(zip(given["a"], given["b"], strict=True))
    only_a = sum(one and not other for one, other in pairs)
    only_b = sum(other and not one for one, other in pairs)
    total, fewer = only_a + only_b, min(only_a, only_b)
    tail = sum(math.comb(total, i) for i in range(fewer + 1)) / 2**total
    return {
        "only_a": only_a,
        "only_b": only_b,
        "p_value": min(1.0, 2 * tail),
        "difference": (only_a - only_b) / len(pairs),
    }


def interval(given: Input, mode: str | None) -> dict[str, float]:
    low, high = wilson(given["successes"], given["n"])
    return {"low": low, "high": high}


def at_budgets(given: Input, mode: str | None) -> dict[str, list[float | None]]:
    return {"values": [value_at_budget(given["curve_tokens_value"], budget) for budget in given["budgets"]]}


def value_at_budget(curve: Sequence[tuple[float, float]], budget: float) -> float | None:
    """Value of the last answer whose cumulative cost is within the budget; None = nothing yet. `curve` holds
    (cumulative cost, value) in order of cost."""
    return next((value for cost, value in reversed(curve) if cost <= budget), None)
