"""Proportional: candidates drawn in proportion to their values.

Source: princeton-nlp/tree-of-thought-llm src/tot/methods/bfs.py.
"""

from collections.abc import Sequence
from typing import Literal

from ramify.strategies.parts.draws import Draws
from ramify.strategies.parts.ucb import inverse_cdf

ZeroValues = Literal["uniform", "stop"]
"""What sampling does when all values are 0: draw uniformly, or end the search (published: it divides by 0)."""


def probabilities(values: Sequence[float], zero_values: ZeroValues = "uniform") -> list[float] | None:
    """Probability of each candidate in proportion to its value; a value below 0 counts as 0. None = the search ends."""
    weights = [max(0.0, value) for value in values]
    total = sum(weights)
    if total > 0:
        return [weight / total for weight in weights]
    return None if zero_values == "stop" else [1 / len(values) for _ in values]


def sampled(values: Sequence[float], k: int, rng: Draws, *, zero_values: ZeroValues = "uniform") -> list[int]:
    """`k` indices in the order drawn, repeats possible; one uniform for each."""
    chances = probabilities(values, zero_values)
    return [] if chances is None else [inverse_cdf(chances, rng.random()) for _ in range(k if values else 0)]


def sampled_once(values: Sequence[float], k: int, rng: Draws, *, zero_values: ZeroValues = "uniform") -> list[int]:
    """`min(k, len(values))` different indices in the order drawn, each in proportion to the values left; one uniform
    for each. If no positive value is left, `zero_values` decides: the rest is drawn uniformly, or not at all."""
    left, drawn = list(range(len(values))), list[int]()
    while left and len(drawn) < k:
        chances = probabilities([values[i] for i in left], zero_values)
        if chances is None:
            break
        drawn.append(left.pop(inverse_cdf(chances, rng.random())))
    return drawn
