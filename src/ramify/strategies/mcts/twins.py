"""Twins: segments below one place that say the same.

The first of them is a child, and stands for all. A later one is none: its prior is added to the first one's, at once
or, while that is still being valued, when it is put below its parent. Only what is equally long is read.
"""

from collections.abc import Sequence

from ramify.core.tree import Tree
from ramify.strategies.mcts.node import Counting, MCTSNode
from ramify.strategies.mcts.priors import Prior, merge


class Twins:
    """Finds them and adds their priors. Mutates the nodes it is told of."""

    def __init__(self, prior: Prior, counting: Counting) -> None:
        self._prior = prior
        self._counting = counting
        self._early: dict[MCTSNode, list[float]] = {}
        """Evidence of those that said what a segment says that is being valued."""

    def remember(self, child: MCTSNode, parent: MCTSNode, length: int) -> None:
        """Later ones may repeat `child`, whose branch is so long; it need not be among the children yet."""
        if parent.by_length is None:
            parent.by_length = {}
        parent.by_length.setdefault(length, []).append(child)

    def forget(self, child: MCTSNode, parent: MCTSNode) -> None:
        """`child` is not to be: what says the same is no repetition."""
        for same in (parent.by_length or {}).values():
            if child in same:
                same.remove(child)
        self._early.pop(child, None)

    def take(self, tree: Tree, tip: int, parent: MCTSNode, evidence: float) -> bool:
        """Add a prior to the sibling that says what was said up to `tip`; returns whether there is one."""
        siblings = parent.by_length.get(tree.length(tip)) if parent.by_length else None
        twin = _twin(tree, tip, siblings, parent.tip) if siblings else None
        if twin is None:
            return False
        if twin.place < 0:
            self._early.setdefault(twin, []).append(evidence)
        else:
            self._merge(parent, twin, evidence)
        return True

    def take_early(self, child: MCTSNode, parent: MCTSNode) -> None:
        """`child` is among the children now: it takes the priors of those that repeated it before."""
        for evidence in self._early.pop(child, ()):
            self._merge(parent, child, evidence)

    def _merge(self, parent: MCTSNode, twin: MCTSNode, evidence: float) -> None:
        merge(parent, twin, evidence, prior=self._prior)
        self._counting.reweigh(parent)


def _twin(tree: Tree, tip: int, siblings: Sequence[MCTSNode], above: int) -> MCTSNode | None:
    """The sibling that says what was said up to `tip`."""
    said = _said(tree, tip, above)
    for sibling in siblings:
        if sibling.said is None:
            sibling.said = _said(tree, sibling.tip, above)
        if sibling.said == said:
            return sibling
    return None


def _said(tree: Tree, tip: int, above: int) -> bytes:
    """What the model said from behind `above` to `tip`."""
    nodes = [tip]
    while (node := tree.parent(nodes[-1])) is not None and node != above:
        nodes.append(node)
    return tree.content_key(*reversed(nodes))
