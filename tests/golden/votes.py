"""Checks of the goldens of votes and statistics."""

from collections.abc import Mapping
from typing import Any

from ramify.experiments.proportions import mcnemar, pass_at_k, value_at_budget, wilson
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
    found = mcnemar(given["a"], given["b"])
    return {
        "only_a": found.only_first,
        "only_b": found.only_second,
        "p_value": found.p_value,
        "difference": found.difference,
    }


def interval(given: Input, mode: str | None) -> dict[str, float]:
    low, high = wilson(given["successes"], given["n"])
    return {"low": low, "high": high}


def at_budgets(given: Input, mode: str | None) -> dict[str, list[float | None]]:
    curve = [(tokens, value) for tokens, value in given["curve_tokens_value"]]
    return {"values": [value_at_budget(curve, budget) for budget in given["budgets"]]}
