"""Select: which leaves of a finished tree become rows (requirement S0.7).

A leaf that is not selected stays on its tree and still counts for every value and mean. Credit is computed on all.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from ramify.core.tree import Tree
from ramify.credit import forest_of
from ramify.credit.grown import Unjudged
from ramify.strategies.parts import sample
from ramify.strategies.parts.draws import Draws

STREAM: Final = 0x726F7773
"""Keeps the draws of a tree's rows apart from those of its strategy."""


def select_leaves(
    tree: Tree, leaves: Sequence[int], n: int, rng: Draws, *, rule: sample.Sample = sample.uniform
) -> list[int]:
    """At most `n` of the `leaves` of `tree` by `rule`: uniformly without replacement, in their order. No padding."""
    return [leaf for leaf in rule(tree, leaves, n, rng) if leaf is not None]


def kept_leaves(tree: Tree, n: int, *, rule: sample.Sample = sample.uniform, unjudged: Unjudged = "error") -> list[int]:
    """At most `n` of the leaves of `tree` that may be trained, drawn by its own seed: the same whenever asked."""
    forest = forest_of(tree, unjudged=unjudged)
    rng = np.random.default_rng((tree.seed, STREAM))
    return select_leaves(tree, forest.nodes[forest.leaves].tolist(), n, rng, rule=rule)


def is_selected(tree: Tree, leaf: int) -> bool:
    """Whether no note says that a leaf is not selected."""
    return not tree.notes(leaf).get("not_selected", False)


def mark_not_selected(tree: Tree, kept: Sequence[int]) -> None:
    """Note `not_selected` on every leaf of a finished tree that is not in `kept`. Mutates the notes."""
    for leaf in set(tree.leaves()) - set(kept):
        tree.note(leaf, not_selected=True)
