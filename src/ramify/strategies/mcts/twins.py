"""Twins: segments below one place with the same text.

Only the first of them is a child. The prior of each later one is added to it: at once, or, if the first is still being
valued, when it is added below its parent. Only segments of equal length are compared.
"""

from collections.abc import Sequence

from ramify.core.tree import Tree
from ramify.strategies.mcts.node import Counting, MCTSNode
from ramify.strategies.mcts.priors import Prior, merge


class Twins:
    """Finds twins and adds their priors. Mutates the nodes it is given."""

    def __init__(self, prior: Prior, counting: Counting) -> None:
        self._prior = prior
        self._counting = counting
        self._early: dict[MCTSNode, list[float]] = {}
        """For a segment still being valued: the evidence of its later twins."""

    def remember(self, child: MCTSNode, parent: MCTSNode, length: int) -> None:
        """Store `child`, whose branch has this length, for comparison with later segments; it need not be among the
        children yet."""
        if parent.by_length is None:
            parent.by_length = {}
        parent.by_length.setdefault(length, []).append(child)

    def forget(self, child: MCTSNode, parent: MCTSNode) -> None:
        """Remove `child`, which will not be added: the next segment with the same text is not a twin."""
        for same in (parent.by_length or {}).values():
            if child in same:
                same.remove(child)
        self._early.pop(child, None)

    def take(self, tree: Tree, tip: int, parent: MCTSNode, evidence: float) -> bool:
        """Add the prior to the sibling with the same text as the segment up to `tip`; returns whether there is one."""
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
        """`child` is now among the children: add the priors of the twins that came earlier."""
        for evidence in self._early.pop(child, ()):
            self._merge(parent, child, evidence)

    def _merge(self, parent: MCTSNode, twin: MCTSNode, evidence: float) -> None:
        merge(parent, twin, evidence, prior=self._prior)
        self._counting.reweigh(parent)


def _twin(tree: Tree, tip: int, siblings: Sequence[MCTSNode], above: int) -> MCTSNode | None:
    """The sibling with the same text as the segment up to `tip`."""
    said = _said(tree, tip, above)
    for sibling in siblings:
        if sibling.said is None:
            sibling.said = _said(tree, sibling.tip, above)
        if sibling.said == said:
            return sibling
    return None


def _said(tree: Tree, tip: int, above: int) -> bytes:
    """The text the model wrote after `above` up to `tip`."""
    nodes = [tip]
    while (node := tree.parent(nodes[-1])) is not None and node != above:
        nodes.append(node)
    return tree.content_key(*reversed(nodes))
