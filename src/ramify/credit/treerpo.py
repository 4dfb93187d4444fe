"""TreeRPO: the segments of one fork are a GRPO group, compared by the mean rewards below them.

Biased: the group's mean and deviation include the segment itself, and every segment counts the same at any depth. An
only child and a group of equal values get 0. Source: arXiv 2506.05183. Its code was not available. It is not verified
whether it divides by the deviation when values are other than 0 and 1, so both variants are offered.
"""

from typing import Literal

from ramify.credit.forest import Array_N, Forest
from ramify.credit.group import group_advantages
from ramify.credit.segments import against_siblings

Denominator = Literal["sample_std", "none"]


def treerpo(forest: Forest, *, denominator: Denominator = "sample_std") -> Array_N:
    """(N,) (V - mean of the siblings) / (sample deviation + 1e-6), divided by the number of leaves. `none` divides by 1
    instead of the deviation."""
    return advantages(forest, denominator) / max(1, forest.num_leaves)


def advantages(forest: Forest, denominator: Denominator) -> Array_N:
    """(N,) advantage of each segment in its group."""
    kind = "grpo" if denominator == "sample_std" else "dr_grpo"
    return against_siblings(forest, lambda values: group_advantages(values, kind))
