"""Segments: what the credits of segment trees share: values by children, and comparison with siblings.

A segment is what one growth added. It may be a chain of nodes, one per step. A node continues its parent's segment if
it is the only child and no decision made it. All nodes of a segment get what its first node gets.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from ramify.credit.forest import STEM, Array_N, Forest

Score = Callable[[Array_N], Array_N]
"""(K,) values of one group of siblings -> (K,) score of each."""


def siblings(forest: Forest) -> dict[int, list[int]]:
    """Parent -> its children in order; the stems (root branches) are under `STEM`. A group comes before the groups
    below it."""
    groups: dict[int, list[int]] = {}
    for node, parent in enumerate(forest.parent.tolist()):
        groups.setdefault(parent, []).append(node)
    return groups


def goes_on(forest: Forest) -> npt.NDArray[np.bool_]:
    """(N,) whether a node continues its parent's segment."""
    if forest.decision is None:
        return np.zeros(len(forest), bool)
    num_children = np.bincount(forest.parent[forest.parent != STEM], minlength=len(forest))
    is_only = (forest.parent != STEM) & (num_children[forest.parent] == 1)
    return is_only & (forest.decision < 0)


def child_values(forest: Forest) -> Array_N:
    """(N,) V: the reward of a leaf; elsewhere the plain mean over the children. So a leaf counts as much as a whole
    subtree beside it.

    Equals `forest.value` if the shares of siblings are equal.
    """
    values = np.where(forest.is_leaf, forest.reward, 0)
    for parent, children in reversed(siblings(forest).items()):
        if parent != STEM:
            values[parent] = values[children].sum() / len(children)
    return values


def against_siblings(forest: Forest, score: Score) -> Array_N:
    """(N,) what `score` gives each segment's value among its siblings. The stems are siblings too."""
    values = child_values(forest)
    scores = values - values
    continued = goes_on(forest)
    for parent, children in siblings(forest).items():
        is_next = bool(continued[children[0]])
        scores[children] = scores[[parent]] if is_next else score(values[children])
    return scores
