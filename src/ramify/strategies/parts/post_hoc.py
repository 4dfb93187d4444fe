"""Post hoc: where a fork that a rule wants on a finished path would stand.

A strategy forks the paths that came first. Its post-hoc rule (`PostHocRule` in `core/strategy.py`) says where it would
fork any finished path, and must give the positions that the tree itself would give.
"""

from collections.abc import Sequence

from ramify.core.branch import Branch
from ramify.core.cut import settled
from ramify.core.tree import Tree


def step_starts(tree: Tree, leaf: int) -> set[int]:
    """Positions where a step of the path begins: not those where a fork divided one."""
    return {tree.length(node) for node in tree.path(leaf) if not _is_divided(tree, node)}


def _is_divided(tree: Tree, node: int) -> bool:
    """Whether `node` is the head of a step whose tail, which has the same seed, is below it."""
    return any(tree.node_seed(child) == tree.node_seed(node) for child in tree.children(node))


def settled_at(branch: Branch, at: int, words: Sequence[str]) -> int:
    """Where a fork asked for at sampled token `at` stands: moved left out of stop words and characters."""
    first = last = at
    while first and branch.is_sampled[first - 1]:
        first -= 1
    while last < len(branch) and branch.is_sampled[last]:
        last += 1
    tokens = [branch.codec.token_bytes(int(i)) for i in branch.ids[first:last]]
    return first + settled(tokens, at - first, words)
