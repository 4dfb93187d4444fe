"""Pilot: a few small trees with forks at every depth, as arrays. A plan is computed from it.

Every fork of a pilot is decided before its children are grown, by a fixed number or a random draw. So nested averages
over it are unbiased. A *level* is what one step adds: level 0 is the first step of a path, level d is the step after
the fork that follows d steps, and the last level is everything after the last fork.
"""

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ramify.core.errors import ContractError

Floats_N = npt.NDArray[np.float64]
Ints_N = npt.NDArray[np.int32]
Bools_N = npt.NDArray[np.bool_]
STEM = -1


@dataclass(frozen=True, eq=False, slots=True)
class PilotTree:
    """The paths of one problem, N nodes, parents first. Siblings have equal weight. Never mutated."""

    parent: Ints_N
    """(N,) index of each node's parent; -1 for a stem (root branch)."""
    level: Ints_N
    """(N,) level of each node, from 0. A node of the last level may continue a node of the same level."""
    reward: Floats_N
    """(N,) return of each leaf; NaN on inner nodes."""
    cost: Floats_N
    """(N,) cost of each node's step, in decode tokens or another unit of cost."""
    given_up: Bools_N
    """(N,) whether the prune rule would end the path at this node."""

    def __post_init__(self) -> None:
        sizes = {len(self.parent), len(self.level), len(self.reward), len(self.cost), len(self.given_up)}
        if len(sizes) > 1 or not len(self.parent):
            raise ContractError(f"the arrays of a pilot's tree have one length, at least 1; got {sorted(sizes)}")
        if (self.parent >= np.arange(len(self.parent))).any():
            raise ContractError(f"a pilot's tree lists parents before their children, got {self.parent.tolist()}")
        if np.isnan(self.reward[self.is_leaf]).any():
            raise ContractError("a leaf of the pilot has no reward; judge every leaf before planning")

    @property
    def is_leaf(self) -> Bools_N:
        """(N,) whether the node ends a path."""
        is_leaf = np.ones(len(self.parent), bool)
        is_leaf[self.parent[self.parent != STEM]] = False
        return is_leaf

    @property
    def weight(self) -> Floats_N:
        """(N,) share of each node in one path; siblings have equal shares. The shares of the leaves sum to 1."""
        parents: list[int] = self.parent.tolist()
        num_children: list[int] = np.bincount(self.parent + 1, minlength=len(parents) + 1).tolist()
        weight: list[float] = []
        for parent in parents:
            weight.append((1.0 if parent == STEM else weight[parent]) / num_children[parent + 1])
        return np.array(weight)

    @property
    def is_behind(self) -> Bools_N:
        """(N,) whether the prune rule would have ended the path before this node."""
        behind: list[bool] = []
        given_up: list[bool] = self.given_up.tolist()
        for parent in self.parent.tolist():
            behind.append(parent != STEM and (behind[parent] or given_up[parent]))
        return np.array(behind, bool)

    def truncated(self) -> "PilotTree":
        """The tree as it would be with the prune rule in use: a pruned path is a leaf with return 0."""
        kept = np.flatnonzero(~self.is_behind)
        place = np.full(len(self.parent) + 1, STEM)
        place[kept] = np.arange(len(kept))
        return replace(
            self,
            parent=place[self.parent[kept]].astype(np.int32),
            level=self.level[kept],
            reward=np.where(self.given_up[kept] & ~self.is_leaf[kept], 0.0, self.reward[kept]),
            cost=self.cost[kept],
            given_up=np.zeros(len(kept), bool),
        )

    def solved(self) -> "PilotTree":
        """The same paths, with return 1 if their return is 1 or more, else 0."""
        return replace(self, reward=np.where(np.isnan(self.reward), np.nan, self.reward >= 1))


@dataclass(frozen=True, slots=True)
class Pilot:
    """The trees of a pilot, one per problem."""

    trees: tuple[PilotTree, ...]
    num_levels: int
    """The first step, and one level for each depth at which paths forked."""

    def __post_init__(self) -> None:
        if len(self.trees) < 2:
            raise ContractError(
                f"a pilot of {len(self.trees)} problem(s) says nothing about others; take 2 problems or more"
            )
        if any(int(tree.level.max()) >= self.num_levels for tree in self.trees):
            raise ContractError(f"a tree of the pilot has more levels than num_levels = {self.num_levels}")

    def truncated(self) -> "Pilot":
        return Pilot(tuple(tree.truncated() for tree in self.trees), self.num_levels)

    def redrawn(self, rng: np.random.Generator) -> "Pilot":
        """As many of its trees, drawn with replacement. Consumes `rng`."""
        picks = rng.integers(len(self.trees), size=len(self.trees))
        return Pilot(tuple(self.trees[pick] for pick in picks), self.num_levels)

    def solved(self) -> "Pilot":
        return Pilot(tuple(tree.solved() for tree in self.trees), self.num_levels)

    @property
    def has_rule(self) -> bool:
        """Whether the prune rule would have ended any path early."""
        return any(tree.is_behind.any() for tree in self.trees)
