"""Values: what each step of a finished tree was worth: the mean of the values (such as rewards) at it and below it."""

from collections.abc import Mapping
from dataclasses import dataclass

from ramify.core.tree import ROOT, Tree


@dataclass(frozen=True, slots=True)
class Worth:
    """The values at a step and below it."""

    total: float
    num_values: int

    @property
    def q(self) -> float:
        return self.total / self.num_values


def worths(tree: Tree) -> dict[int, Worth]:
    """Worth of every node with a judged leaf below it, from the rewards of those leaves, in canonical order."""
    return below(tree, {leaf: reward for leaf in tree.leaves() if (reward := tree.reward(leaf)) is not None})


def below(tree: Tree, values: Mapping[int, float]) -> dict[int, Worth]:
    """Worth of every node that has one of `values` at it or below it, in canonical order."""
    sums: dict[int, float] = {}
    counts: dict[int, int] = {}
    for valued, value in values.items():
        for node in tree.path(valued):
            sums[node] = sums.get(node, 0.0) + value
            counts[node] = counts.get(node, 0) + 1
    return {node: Worth(sums[node], counts[node]) for node in tree.subtree(ROOT) if node in counts}
