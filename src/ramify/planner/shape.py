"""Shape: how many children a tree should have after each step, given the variance and the cost of the steps.

A tree whose levels have N_0, N_1, … nodes has variance sum(v_l / N_l) and cost sum(c_l N_l). Their product is smallest
if N_l is proportional to sqrt(v_l / c_l). This gives K_d = sqrt(v_d c_{d-1} / (v_{d-1} c_d)) children after step d. If
that is below 1, the best tree without random termination (a coin) has one child there, and the two levels count as one:
pooling adjacent violators, as in isotonic regression. Source: the multilevel-splitting (RESTART) rule,
`docs/choose/fork.md`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt

from ramify.core.errors import ContractError

Array = npt.NDArray[np.float64]
MAX_CHILDREN: Final = 16
"""Most children at one place. An estimate near 0 in a denominator can ask for any number."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What a run should do: number of children at the prompt, after the first step, after the second, and so on."""

    children: tuple[float, ...]
    """Expected numbers; 1 = paths continue without a fork."""
    keep: float | None = None
    """Probability of going on when the prune rule fires. 0 = never; None = the rule is not used."""

    def __post_init__(self) -> None:
        if not self.children or not all(1 <= k < math.inf for k in self.children):
            raise ContractError(
                f"children = {self.children!r}: every depth of a shape has a finite number of children, at least 1"
            )
        if self.keep is not None and not 0 <= self.keep < 1:
            raise ContractError(
                f"keep = {self.keep!r}: the share of paths kept where the rule fires is at least 0 and below 1"
            )

    @property
    def is_forked(self) -> bool:
        return any(k > 1 for k in self.children[1:])

    @property
    def kind(self) -> tuple[tuple[int, ...], bool]:
        """The steps after which it forks, and whether it prunes, whatever the numbers."""
        return tuple(steps for steps, k in enumerate(self.children) if steps and k > 1), self.keep is not None

    def narrowed(self, part: float) -> "Shape":
        """The same forks, narrower: 1 = unchanged, 0 = no forks."""
        return replace(self, children=(self.children[0], *[round(k**part, 1) for k in self.children[1:]]))

    def behind(self, num_levels: int) -> tuple[float, ...]:
        """(num_levels - 1,) children after each step."""
        return (*self.children[1:num_levels], *((1.0,) * (num_levels - len(self.children))))

    def widths(self, num_levels: int) -> Array:
        """(num_levels,) expected nodes of each level for one stem (root branch), for paths that do not end."""
        return np.array([1.0, *self.behind(num_levels)]).cumprod()


def best_ratio(variance: Array, cost: Array) -> Array:
    """(…, L - 1) best number of children after each step, if it were the only fork, from (…, L) variances and costs.

    Infinite where nothing varies before the fork. NaN where nothing varies at all, or one side costs nothing.
    """
    before, spent = variance.cumsum(axis=-1)[..., :-1], cost.cumsum(axis=-1)[..., :-1]
    behind, left = variance.sum(axis=-1, keepdims=True) - before, cost.sum(axis=-1, keepdims=True) - spent
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.sqrt(np.maximum(behind, 0) / before * (spent / np.where(left > 0, left, np.nan)))


def best_children(variance: Sequence[float], cost: Sequence[float], may_fork: Sequence[bool]) -> tuple[float, ...]:
    """Children after each step, (L - 1,), for the smallest variance x cost; 1 wherever not `may_fork`.

    Numbers have one decimal, from 1 to `MAX_CHILDREN`.
    """
    pools: list[tuple[float, float, int]] = []
    for level, (v, c) in enumerate(zip(variance, cost, strict=True)):
        pool = (max(v, 0.0), c, level)
        while pools and (not may_fork[pool[2] - 1] or _is_wider(pools[-1], pool)):
            last = pools.pop()
            pool = (last[0] + pool[0], last[1] + pool[1], last[2])
        pools.append(pool)
    children = [1.0] * (len(variance) - 1)
    for before, after in pairwise(pools):
        k = math.sqrt(after[0] * before[1] / (before[0] * after[1])) if before[0] * after[1] else math.inf
        children[after[2] - 1] = round(min(k, MAX_CHILDREN), 1)
    return tuple(children)


def noise_times_cost(variance: Array, cost: Array, widths: Array) -> Array:
    """(…,) variance x cost of trees with `widths` nodes per level. For chains, the product of the sums."""
    return (variance / widths).sum(axis=-1) * (cost * widths).sum(axis=-1)


def _is_wider(before: tuple[float, float, int], after: tuple[float, float, int]) -> bool:
    """Whether the earlier level deserves at least as many nodes as the later one."""
    return before[0] * after[1] >= after[0] * before[1]
