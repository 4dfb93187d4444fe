"""Allotment: how many continuations each path gets within a width budget, and where a finished path is cut.

This is TreePO's arithmetic, on numbers only. Source: arXiv 2508.17445; multimodal-art-projection/TreePO
vllm_rollout_spmd.py (budget, `create_fallback_sample_by_policy`) and vllm_rollout_tree.py
(`weight_to_discrete_allocate`).
"""

import math
from collections.abc import Sequence
from typing import Literal

from ramify.core.errors import ConfigError

Remainder = Literal["first", "last"]
"""Which path gets what does not divide evenly: one each from the first path on, or all of it to the last
(published)."""


def total_allotment(room: int, *, finished_now: int, active: int, divergence: int) -> int:
    """Continuations of all active paths: `divergence` for each active or just finished path, limited by `room`.

    Never fewer than one for each active path.
    """
    return max(min(max(room, 0), divergence * (finished_now + active)), active)


def even_allotment(total: int, number: int, *, remainder: Remainder = "first") -> list[int]:
    """`total` shared among `number` paths."""
    each, left = divmod(total, number)
    if remainder == "last":
        return [each] * (number - 1) + [each + left]
    return [each + (i < left) for i in range(number)]


def weighted_allotment(weights: Sequence[float], total: int) -> list[int]:
    """One each; the rest of `total` in proportion to (N,) weights by largest remainder, ties to the earlier.

    Raises `ConfigError` if `total` is less than one each, or if the weights do not sum to a positive number.
    """
    rest, mass = total - len(weights), sum(weights)
    if rest < 0 or not mass > 0:
        raise ConfigError(f"cannot share {total} among {len(weights)} paths of weights {list(weights)!r}, one each")
    quotas = [weight / mass * rest for weight in weights]
    found = [1 + math.floor(quota) for quota in quotas]
    by_remainder = sorted(range(len(quotas)), key=lambda i: math.floor(quotas[i]) - quotas[i])
    for i in by_remainder[: total - sum(found)]:
        found[i] += 1
    return found


def softmax(values: Sequence[float], temperature: float) -> list[float]:
    """exp(v / temperature), scaled to sum to 1; empty for no values."""
    top = max(values, default=0.0)
    powers = [math.exp((value - top) / temperature) for value in values]
    total = math.fsum(powers)
    return [power / total for power in powers]


def fallback_index(output_len: int, block: int, *, segment: int, max_depth: int, window: int) -> int:
    """Tokens to keep of a finished path of `output_len`. The cut is `block` windows before its end, in whole windows.

    The cut is never at a depth of `max_depth` segments or more. Returns 0, a fresh start, for a path shorter than a
    window.
    """
    if output_len < window:
        return 0
    kept = (math.ceil(output_len / window) - block) * window
    return segment * (max_depth - 1) if math.ceil(kept / segment) >= max_depth else kept
