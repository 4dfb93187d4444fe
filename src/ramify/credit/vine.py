"""Vine: credits a path by how much each of its steps changed the value. Rollouts beside the path estimate the value
(VinePPO).

The trunk is trained, the rollouts are not: a decision gives its trunk the share 1 and its rollouts the share 0. The
value of a prefix is the mean return of its rollouts. At the end of the path, it is the path's own return, or 0 if
random termination (a coin) ended it. Exact if every prefix of the trunk has rollouts, including the prompt
(`docs/concepts/credit.md`; arXiv 2410.01679).
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ramify.core.errors import ContractError
from ramify.credit.forest import STEM, Array_N, Forest


def vine(forest: Forest) -> Array_N:
    """(N,) w_c (V after - V before) on trunks, 0 on rollouts. Raises `ContractError` for a prefix without a value."""
    children: dict[int, list[int]] = {}
    for node, parent in enumerate(forest.parent.tolist()):
        children.setdefault(parent, []).append(node)
    coefficients = np.zeros(len(forest), forest.share.dtype)
    for node, parent in enumerate(forest.parent.tolist()):
        if forest.weight[node] == 0:
            continue
        before = _value(forest, children[parent], place=parent)
        after = forest.reward[node] if forest.is_leaf[node] else _after(forest, children[node], place=node)
        coefficients[node] = forest.weight[node] * (after - before)
    return coefficients


def _after(forest: Forest, children: Sequence[int], *, place: int) -> Any:
    """Value of the prefix at a node's end, times the sum of the shares after it. The sum is 1, or more if random
    termination let the path go on there."""
    return forest.share[children].sum() * _value(forest, children, place=place)


def _value(forest: Forest, siblings: Sequence[int], *, place: int) -> Any:
    """Mean return of the rollouts among the children of one place."""
    rollouts = [node for node in siblings if forest.share[node] == 0]
    if not rollouts:
        where = "the prompt" if place == STEM else f"node {int(forest.nodes[place])}"
        raise ContractError(
            f"vine needs rollouts beside the trunk at every prefix, and {where} has none: fork there with the shares "
            "(1, 0, …), or use subtree_loo"
        )
    return forest.value[rollouts].sum() / len(rollouts)
