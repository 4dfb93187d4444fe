"""Select: which leaves of a finished tree become rows (requirement S0.7).

A leaf that is not selected stays on its tree and still counts in every value and mean. Credit is computed on all
leaves.
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
"""Separates the random draws of a tree's rows from those of its strategy."""


def select_leaves(
    tree: Tree, leaves: Sequence[int], n: int, rng: Draws, *, rule: sample.Sample = sample.uniform
) -> list[int]:
    """At most `n` of the `leaves` of `tree`, chosen by `rule`; the default draws uniformly without replacement and
    keeps the order. No padding."""
    return [leaf for leaf in rule(tree, leaves, n, rng) if leaf is not None]


def kept_leaves(tree: Tree, n: int, *, rule: sample.Sample = sample.uniform, unjudged: Unjudged = "error") -> list[int]:
    """At most `n` of the trainable leaves of `tree`, drawn with the tree's own seed: the result is the same every
    time."""
    forest = forest_of(tree, unjudged=unjudged)
    rng = np.random.default_rng((tree.seed, STREAM))
    return select_leaves(tree, forest.nodes[forest.leaves].tolist(), n, rng, rule=rule)


def is_selected(tree: Tree, leaf: int) -> bool:
    """Whether the leaf has no note that says it is not selected."""
    return not tree.notes(leaf).get("not_selected", False)


def mark_not_selected(tree: Tree, kept: Sequence[int]) -> None:
    """Note `not_selected` on every leaf of a finished tree that is not in `kept`. Mutates the notes."""
    for leaf in set(tree.leaves()) - set(kept):
        tree.note(leaf, not_selected=True)
