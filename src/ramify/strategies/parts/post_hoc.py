"""Post hoc: where a rule's fork on a finished path would be placed.

A strategy forks the paths that came first. Its post-hoc rule (`PostHocRule` in `core/strategy.py`) says where it would
fork any finished path. It must give the same positions as the tree itself.
"""

from collections.abc import Sequence

from ramify.core.branch import Branch
from ramify.core.cut import settled
from ramify.core.tree import Tree


def step_starts(tree: Tree, leaf: int) -> set[int]:
    """Positions where a step of the path begins, except where a fork divided a step."""
    return {tree.length(node) for node in tree.path(leaf) if not _is_divided(tree, node)}


def _is_divided(tree: Tree, node: int) -> bool:
    """Whether `node` is the first part of a divided step: the rest, with the same seed, is below it."""
    return any(tree.node_seed(child) == tree.node_seed(node) for child in tree.children(node))


def settled_at(branch: Branch, at: int, words: Sequence[str]) -> int:
    """Where a fork requested at sampled token `at` is placed: moved left so that it cuts no stop word or character."""
    first = last = at
    while first and branch.is_sampled[first - 1]:
        first -= 1
    while last < len(branch) and branch.is_sampled[last]:
        last += 1
    tokens = [branch.codec.token_bytes(int(i)) for i in branch.ids[first:last]]
    return first + settled(tokens, at - first, words)
