"""Checks of the credit goldens: a case's input -> what the credits of the library make of it."""

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from ramify.credit import (
    Forest,
    clip_parts,
    group_advantages,
    leaf_tree_loo,
    split_tree_loo,
)
from ramify.credit import leaf_grpo as leaf_z_scores
from ramify.credit.forest import STEM

Nodes = Sequence[Sequence[Any]]


def forest(nodes: Nodes) -> Forest:
    """[id, parent, fork, num_tokens, reward] a node -> a forest of rationals."""
    return Forest.of_arrays(
        parent=[STEM if parent is None else parent for _, parent, *_ in nodes],
        share=[Fraction(1, fork) for _, _, fork, *_ in nodes],
        reward=[None if reward is None else Fraction(reward) for *_, reward in nodes],
    )


def weights(nodes: Nodes, mode: str | None) -> list[str]:
    return [str(weight) for weight in forest(nodes).weight]


def exactly(credit: Callable[[Forest], Any]) -> Callable[[Nodes, str | None], list[float]]:
    """The check of a credit without square roots: computed in rationals."""

    def check(nodes: Nodes, mode: str | None) -> list[float]:
        return [float(c) for c in credit(forest(nodes))]

    return check


def leaf_grpo(nodes: Nodes, mode: str | None) -> list[float]:
    """The goldens divide by the population's standard deviation."""
    return leaf_z_scores(forest(nodes), deviation="population").tolist()


def leaf_tree_loo_of_two(nodes: Nodes, mode: str | None) -> list[float] | None:
    """None where there is one stem, which the credit refuses."""
    grown = forest(nodes)
    return None if len(grown.stems) < 2 else [float(c) for c in leaf_tree_loo(grown)]


def split_tree_loo_of_two(nodes: Nodes, mode: str | None) -> list[float] | None:
    """None where there is one stem, which the credit refuses."""
    grown = forest(nodes)
    return None if len(grown.stems) < 2 else [float(c) for c in split_tree_loo(grown)]


def group_advantage(given: Mapping[str, Any], mode: str | None) -> list[float]:
    kind = given["kind"].removesuffix("_corrected")
    return group_advantages(np.array(given["rewards"]), kind, mode=mode).tolist()  # type: ignore[arg-type]


def ppo(given: Mapping[str, Any], mode: str | None) -> dict[str, float]:
    """The clipped objective of one token, and its derivative by log pi, from the aggregated parts."""
    rows = [(Fraction(weight), Fraction(advantage)) for weight, advantage in given["rows"]]
    total = sum(weight for weight, _ in rows)
    shared = Forest.of_arrays(
        parent=[STEM, *[0 for _ in rows]],
        share=[total, *[weight / total for weight, _ in rows]],
        reward=[None, *[Fraction(0) for _ in rows]],
    )
    plus, minus, weight = (part[0] for part in clip_parts(shared, np.array([a for _, a in rows], object)))
    law = {name: given[name] for name in ("ratio", "clip_low", "clip_high", "dual")}
    objective, slope = clipped(float(plus), float(minus), **law)
    parts = {"A_plus": float(plus), "A_minus": float(minus), "W": float(weight)}
    return {**parts, "objective": objective, "dlogp": slope}


def clipped(
    plus: float, minus: float, *, ratio: float, clip_low: float, clip_high: float, dual: float | None
) -> tuple[float, float]:
    """plus min(r, 1 + high) + minus min(max(r, 1 - low), dual), and r times its derivative by r."""
    above = min(ratio, 1 + clip_high)
    below = max(ratio, 1 - clip_low) if dual is None else min(max(ratio, 1 - clip_low), dual)
    slope = ratio * (plus * (above == ratio) + minus * (below == ratio))
    return plus * above + minus * below, slope
