"""Levels: how much variance of the return each step adds, and what it costs, computed from nested forks.

This is nested analysis of variance for trees whose numbers of children differ. At a fork, take the sample variance of
the children's means and subtract what these means owe to chance below. This is an unbiased estimate of what the
children's own step adds. A place where a random draw gave one child says nothing about its own level; it uses the
level's mean. Paths that ended add nothing to later levels and cost nothing there. Source: Searle, Casella and
McCulloch, Variance Components (1992), chapter 3; the use for splitting: Garvels, The splitting method in rare event
simulation (2000), chapter 2.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from ramify.planner.pilot import STEM, Pilot, PilotTree

Array = npt.NDArray[np.float64]
NUM_RESAMPLES: Final = 2000


@dataclass(frozen=True, slots=True)
class Levels:
    """L levels for R resamples of a pilot's problems. The first resample is the pilot itself."""

    variance: Array
    """(R, L) variance of the return that each level adds, per path. It is unbiased, so it may be below 0."""
    cost: Array
    """(R, L) mean cost of each level, per path."""
    mean: Array
    """(R,) mean return."""
    between: Array
    """(R,) variance of the problems' mean returns."""
    picks: Array
    """(R, P) how often each problem counts."""

    def settled(self) -> "Levels":
        """The same levels with no variance below 0. The variance summed up to a level then never falls and never
        exceeds the total."""
        so_far = self.variance.cumsum(axis=1)
        whole = np.maximum(so_far[:, -1:], 0)
        so_far = np.clip(np.maximum.accumulate(so_far, axis=1), 0, whole)
        return replace(self, variance=np.diff(so_far, axis=1, prepend=0))


@dataclass(frozen=True, slots=True)
class _Sums:
    """What one tree contributes, as sums that add up over trees. For P trees, arrays have P in front."""

    data: Array
    """(L,) per level: sum over its forks of weight x (sample variance of means - chance known below)."""
    owed: Array
    """(L, L) per level: how often the mean of another level must still be subtracted from `data`."""
    forked: Array
    """(L,) weight of the forks."""
    alive: Array
    """(L,) weight of the places where paths continued into the level, forked or not."""
    cost: Array
    """(L,)"""
    mean: Array
    """()"""
    noise: Array
    """() part of the squared mean that is due to chance."""


def resampled(num_problems: int, rng: np.random.Generator, *, num_resamples: int = NUM_RESAMPLES) -> Array:
    """(R, P) how often each problem counts in the pilot itself, and in each bootstrap resample. Consumes `rng`."""
    picks = rng.multinomial(num_problems, np.full(num_problems, 1 / num_problems), size=num_resamples)
    return np.vstack([np.ones(num_problems), picks.astype(np.float64)])


def levels(pilot: Pilot, picks: Array | None = None) -> Levels:
    """Variance and cost of each level, for each row of `picks` (R, P); None = for the pilot itself only."""
    sums = [_Walk(tree, pilot.num_levels).sums() for tree in pilot.trees]
    size = len(sums)
    counts = np.ones((1, size)) if picks is None else picks
    data, owed, forked, alive, cost = (
        np.tensordot(counts, np.array([getattr(s, name) for s in sums]), 1)
        for name in ("data", "owed", "forked", "alive", "cost")
    )
    means, noises = np.array([s.mean for s in sums]), np.array([s.noise for s in sums])
    mean = counts @ means / size
    spread = (counts @ means**2 - size * mean**2) / (size - 1)
    between = spread - counts @ noises / size
    return Levels(_solved(data, owed, forked, alive) / size, cost / size, mean, between, counts)


def _solved(data: Array, owed: Array, forked: Array, alive: Array) -> Array:
    """(R, L) sums of the variances, from the deepest level up. A level owes only to deeper levels."""
    a_place = np.zeros_like(data)
    for level in reversed(range(data.shape[1])):
        left = data[:, level] - (owed[:, level] * a_place).sum(axis=1)
        a_place[:, level] = np.divide(left, forked[:, level], out=np.zeros(len(data)), where=forked[:, level] > 0)
    return a_place * alive


class _Walk:
    """One walk over a tree, from the leaves up. Families are small, so plain numbers are faster than arrays."""

    def __init__(self, tree: PilotTree, num_levels: int) -> None:
        self.tree = tree
        self.num_levels = num_levels
        self.level: list[int] = tree.level.tolist()
        self.children: list[list[int]] = [[] for _ in range(len(tree.parent) + 1)]
        for node, parent in enumerate(tree.parent.tolist()):
            self.children[parent].append(node)

    @cached_property
    def means(self) -> list[float]:
        """(N,) mean return below each node."""
        means: list[float] = self.tree.reward.tolist()
        for node in reversed(range(len(means))):
            if below := self.children[node]:
                means[node] = sum(means[child] for child in below) / len(below)
        return means

    def sums(self) -> _Sums:
        size, n = self.num_levels, len(self.tree.parent)
        weight = [*self.tree.weight.tolist(), 1.0]
        known = [0.0] * (n + 1)
        owed: list[dict[int, float]] = [{} for _ in range(n + 1)]
        """Variance of each node's mean given its prefix: a known number, plus how often to add the mean of each
        level."""
        total = _Sums(*(np.zeros(shape) for shape in (size, (size, size), size, size, size, (), ())))
        for node in [*reversed(range(n)), STEM]:
            below = self.children[node]
            if not below or not self._is_place(node):
                continue
            level = self.level[below[0]]
            total.alive[level] += weight[node]
            if len(below) == 1:
                known[node] = known[below[0]]
                owed[node] = {**owed[below[0]], level: owed[below[0]].get(level, 0.0) + 1}
                continue
            spread = _variance([self.means[child] for child in below])
            total.data[level] += weight[node] * (spread - sum(known[child] for child in below) / len(below))
            for child in below:
                for deeper, times in owed[child].items():
                    total.owed[level, deeper] += weight[node] * times / len(below)
            total.forked[level] += weight[node]
            known[node] = spread / len(below)
        np.add.at(total.cost, self.tree.level, self.tree.weight * self.tree.cost)
        firsts = self.children[STEM]
        total.mean[()] = sum(self.means[child] for child in firsts) / len(firsts)
        total.noise[()] = known[STEM]
        return total

    def _is_place(self, node: int) -> bool:
        """Whether paths continue from here into the next level."""
        return node == STEM or self.level[self.children[node][0]] > self.level[node]


def _variance(values: list[float]) -> float:
    """Sample variance of two values or more."""
    mean = sum(values) / len(values)
    return sum((value - mean) ** 2 for value in values) / (len(values) - 1)
