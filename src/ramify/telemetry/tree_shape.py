"""TreeShape: how deep and how wide a finished tree is, and how its paths ended. Pure: it changes nothing."""

from dataclasses import dataclass

from ramify.core.stop import STOP_WORDS
from ramify.core.tree import ROOT, Tree


@dataclass(frozen=True, slots=True)
class TreeShape:
    """The shape of a finished tree."""

    num_nodes: int
    depth: int | None
    """Edges from the root to the deepest leaf; None = there is no leaf."""
    branch_factor: float | None
    """Mean number of children of the inner nodes; None = the tree has only its root."""


def leaves_by_stop(tree: Tree) -> dict[str, int]:
    """Ended paths by their stop word: the leaves and the failed paths, which are not leaves."""
    counts: dict[str, int] = {}
    for node in tree.subtree():
        word = tree.stop(node)
        if word is not None and (STOP_WORDS[word].is_failure or tree.is_leaf(node)):
            counts[word] = counts.get(word, 0) + 1
    return counts


def shape_of(tree: Tree) -> TreeShape:
    """Compute a finished tree's shape, visiting each node once."""
    depths: dict[int, int] = {ROOT: 0}
    inner: set[int] = set()
    deepest: int | None = None
    for node in tree.subtree():
        parent = tree.parent(node)
        if parent is not None:
            depths[node] = depths[parent] + 1
            inner.add(parent)
        if tree.is_leaf(node):
            deepest = max(deepest or 0, depths[node])
    return TreeShape(len(tree), deepest, (len(tree) - 1) / len(inner) if inner else None)
