"""Sample: which leaves of a finished tree become rows. A rule is a function, selected by name (requirements S0.7,
S0.10).

Other leaves stay in the tree, where they still count for values. None is a padding row, whose weights are all 0.
Padding never copies a leaf unless a published rule does so.
"""

from collections.abc import Callable, Sequence
from typing import Literal

from ramify.core.stems import tree_number
from ramify.core.tree import Tree
from ramify.strategies.parts.draws import Draws, without_replacement

Sample = Callable[[Tree, Sequence[int], int, Draws], list[int | None]]
"""(tree, leaves in canonical order, n, rng) -> n rows."""
Shortage = Literal["corrected", "plan", "at2po"]


def too_few_leaves(leaves: Sequence[int], n: int, rule: Shortage) -> list[int | None]:
    """n rows from at most n leaves.

    corrected: every leaf once, then padding; plan: the list repeated in order; at2po: copies of the last leaf. Source:
    `sample_leaves` in zzfoutofspace/ATPO OFFLINE_TREE_SEARCH_REFACTOR_PLAN.md and
    vllm_rollout_with_tools_tree_offline.py.
    """
    missing = n - len(leaves)
    if not leaves or rule == "corrected":
        return [*leaves, *[None] * missing]
    if rule == "at2po":
        return [*leaves, *[leaves[-1]] * missing]
    return [leaves[i % len(leaves)] for i in range(n)]


def uniform(tree: Tree, leaves: Sequence[int], n: int, rng: Draws) -> list[int | None]:
    """n leaves without replacement, in their original order; padding if there are fewer."""
    if len(leaves) <= n:
        return too_few_leaves(leaves, n, "corrected")
    kept = set(without_replacement(leaves, n, rng))
    return [leaf for leaf in leaves if leaf in kept]


def as_planned(tree: Tree, leaves: Sequence[int], n: int, rng: Draws) -> list[int | None]:
    """The plan's rule: n leaves in the order drawn, or the repeated leaf list; each copy is trained."""
    return list(without_replacement(leaves, n, rng)) if len(leaves) >= n else too_few_leaves(leaves, n, "plan")


def correct_first(tree: Tree, leaves: Sequence[int], n: int, rng: Draws) -> list[int | None]:
    """TreeRL's rule: one correct leaf if there is any, the rest at random; in their original order, then padding.

    It chooses by reward, so no gradient of its rows is exact. Correct = a reward above 0. Source: THUDM/TreeRL
    tree_node.py, `select_terminal`.
    """
    correct = [leaf for leaf in leaves if (tree.reward(leaf) or 0) > 0]
    first = without_replacement(correct, min(1, n), rng)
    rest = without_replacement([leaf for leaf in leaves if leaf not in first], n - len(first), rng)
    return too_few_leaves([leaf for leaf in leaves if leaf in {*first, *rest}], n, "corrected")


def copies_of_last(tree: Tree, leaves: Sequence[int], n: int, rng: Draws) -> list[int | None]:
    """AT2PO's rule: like `uniform`, but missing rows are copies of the last leaf, and each copy is trained."""
    return uniform(tree, leaves, n, rng) if len(leaves) >= n else too_few_leaves(leaves, n, "at2po")


def per_tree(tree: Tree, leaves: Sequence[int], n: int, rng: Draws) -> list[int | None]:
    """Tree-GRPO's rule: n / M leaves from each of M trees, in their original order, then padding."""
    of_tree: dict[int, list[int]] = {}
    for leaf in leaves:
        of_tree.setdefault(tree_number(tree, tree.path(leaf)[1]), []).append(leaf)
    kept: set[int] = set()
    for i, number in enumerate(sorted(of_tree)):
        kept.update(without_replacement(of_tree[number], n // len(of_tree) + (i < n % len(of_tree)), rng))
    return too_few_leaves([leaf for leaf in leaves if leaf in kept], n, "corrected")
