"""Values: what each step of a finished tree was worth: the mean reward of the judged leaves below it."""

from dataclasses import dataclass

from ramify.core.tree import ROOT, Tree


@dataclass(frozen=True, slots=True)
class Worth:
    """What lies below a step."""

    sum_rewards: float
    num_leaves: int
    """Judged ones."""

    @property
    def q(self) -> float:
        return self.sum_rewards / self.num_leaves


def worths(tree: Tree) -> dict[int, Worth]:
    """Of every node with a judged leaf below it, in canonical order; a leaf lies below itself."""
    rewards = [(leaf, reward) for leaf in tree.leaves() if (reward := tree.reward(leaf)) is not None]
    sums: dict[int, float] = {}
    counts: dict[int, int] = {}
    for leaf, reward in rewards:
        for node in tree.path(leaf):
            sums[node] = sums.get(node, 0.0) + reward
            counts[node] = counts.get(node, 0) + 1
    return {node: Worth(sums[node], counts[node]) for node in tree.subtree(ROOT) if node in counts}
