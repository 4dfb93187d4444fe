"""Checks of the golden arithmetic of tree searches: bounds, requests in flight, widening."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ramify.strategies.parts.ucb import (
    growing_exploration,
    max_children,
    puct,
    reduced_first_play,
    uct,
    with_virtual_loss,
    wu_uct,
)

Input = Mapping[str, Any]


def puct_scores(given: Input, mode: str | None) -> dict[str, object]:
    children = given["children"]
    total = sum(child["n"] for child in children)
    grows = given["formula"] == "muzero"
    c = growing_exploration(given["c"], total, c_base=given["c_base"]) if grows else given["c"]
    unvisited = given["fpu_value"]
    if given["fpu_reduction"] is not None:
        visited = sum(child["p"] for child in children if child["n"])
        unvisited = reduced_first_play(given["parent_q"], visited, reduction=given["fpu_reduction"])
    qs = [child["w"] / child["n"] if child["n"] else unvisited for child in children]
    return _chosen([puct(q, x["p"], x["n"], total, exploration=c) for q, x in zip(qs, children, strict=True)])


def wu_uct_scores(given: Input, mode: str | None) -> dict[str, object]:
    return _chosen(_wu_uct(given["children"], given["parent_n"], given["parent_o"], given["beta"]))


def virtual_loss_scores(given: Input, mode: str | None) -> dict[str, object]:
    return _chosen(_virtual_loss(given["children"], given))


def asks_in_a_row(given: Input, mode: str | None) -> dict[str, list[int]]:
    """Choices one after the other with no value in between."""
    n = sum(child["n"] for child in given["children"])

    def row(policy: str) -> list[int]:
        children = [dict(child) for child in given["children"]]
        found: list[int] = []
        for _ in range(given["asks"]):
            in_flight = sum(child["o"] for child in children)
            scores = {
                "wu_uct": lambda c=children, o=in_flight: _wu_uct(c, n, o, given["beta"]),
                "virtual_loss": lambda c=children: _virtual_loss(c, given),
                "stale_statistics": lambda: _virtual_loss(given["children"], given),
            }[policy]()
            found.append(scores.index(max(scores)))
            children[found[-1]]["o"] += 1
        return found

    return {policy: row(policy) for policy in ("wu_uct", "virtual_loss", "stale_statistics")}


def widening(given: Input, mode: str | None) -> dict[str, list[int]]:
    scale, exponent = given["C"], given["alpha"]
    return {"max_children": [max_children(n, scale=scale, exponent=exponent) for n in given["parent_visits"]]}


def rstar_puct(given: Input, mode: str | None) -> dict[str, float]:
    """rStar's name for a bound without a prior."""
    visits = given["visits"]
    q = given["value_sum"] / visits if visits else 0.0
    return {"puct": uct(q, visits, given["parent_visits"], exploration=given["c_puct"])}


def _wu_uct(children: Sequence[Input], parent_n: int, parent_o: int, beta: float) -> list[float]:
    return [
        wu_uct(_q(child), child["n"], child["o"], parent_visits=parent_n, parent_in_flight=parent_o, beta=beta)
        for child in children
    ]


def _virtual_loss(children: Sequence[Input], given: Input) -> list[float]:
    counted = [
        with_virtual_loss(child["w"], child["n"], child["o"], loss=given["loss"], weight=given["n_vl"])
        for child in children
    ]
    total = sum(n for _, n in counted)
    qs = [w / n if n else 0.0 for w, n in counted]
    rows = zip(qs, children, counted, strict=True)
    return [puct(q, child["p"], n, total, exploration=given["c"]) for q, child, (_, n) in rows]


def _q(child: Input) -> float:
    return child["w"] / child["n"] if child["n"] else 0.0


def _chosen(scores: list[float]) -> dict[str, object]:
    """The scores (None stands for infinity) and the first of the largest."""
    return {
        "scores": [None if math.isinf(score) else score for score in scores],
        "selected": scores.index(max(scores)),
    }
