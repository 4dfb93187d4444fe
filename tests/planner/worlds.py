"""Worlds: episodes whose levels have known variances and costs, and pilots flown in them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ramify.planner.pilot import STEM, Pilot, PilotTree


@dataclass(frozen=True)
class World:
    """Paths of L steps. A step kills a path with some probability, or raises its chance so that the mean stays."""

    shares: Sequence[float]
    """(L,) of the variance still to come, the part that each step settles; 1 at the last."""
    costs: Sequence[float]
    """(L,)"""
    chances: tuple[float, float] = (2.0, 2.0)
    """Beta law of the problems' chances."""
    seen: float = 0.0
    """Probability that the prune rule sees a dead path at the step that killed it."""

    def variances(self) -> np.ndarray:
        """(L,) what each step adds to the variance of success within a problem."""
        a, b = self.chances
        left = a * b / ((a + b) * (a + b + 1))
        found = []
        for share in self.shares:
            found.append(left * share)
            left -= found[-1]
        return np.array(found)

    def pilot(self, children: Sequence[float], num_problems: int, seed: int) -> Pilot:
        rng = np.random.default_rng(seed)
        trees = tuple(self._tree(rng.beta(*self.chances), children, rng) for _ in range(num_problems))
        return Pilot(trees, len(self.shares))

    def solved(self, children: Sequence[float], num_problems: int, seed: int) -> float:
        """Share of problems with a success, each with one tree of this shape."""
        pilot = self.pilot(children, num_problems, seed)
        return float(np.mean([tree.reward[tree.is_leaf].max() for tree in pilot.trees]))

    def _tree(self, chance: float, children: Sequence[float], rng: np.random.Generator) -> PilotTree:
        nodes: list[tuple[int, int, float, bool]] = []
        """(parent, level, reward, is given up)"""

        def grow(parent: int, level: int, chance: float) -> None:
            risen = chance + self.shares[level] * (1 - chance)
            chance = risen if rng.random() < chance / risen else 0.0
            is_last = level == len(self.shares) - 1
            nodes.append((parent, level, chance if is_last else np.nan, chance == 0 and rng.random() < self.seen))
            if not is_last:
                spread(len(nodes) - 1, level + 1, chance)

        def spread(parent: int, level: int, chance: float) -> None:
            wanted = children[level] if level < len(children) else 1.0
            for _ in range(int(wanted) + (rng.random() < wanted - int(wanted))):
                grow(parent, level, chance)

        spread(STEM, 0, chance)
        parent, level, reward, given_up = (np.array(column) for column in zip(*nodes, strict=True))
        cost = np.array(self.costs, np.float64)[level]
        return PilotTree(parent.astype(np.int32), level.astype(np.int32), reward, cost, given_up.astype(bool))


EARLY = World(shares=(0.5, 0.5, 0.3, 1.0), costs=(5, 5, 5, 7), seen=0.8)
"""Decided at once, and cheaply; what is dead mostly shows."""
LATE = World(shares=(0.02, 0.02, 0.05, 1.0), costs=(8, 8, 8, 6))
"""A long way to a decision at its end."""
