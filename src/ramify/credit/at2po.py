"""AT2PO: turn credit. Every node is credited by its own value, computed from the leaves up.

Leaf rewards are z-scored over the prompt. The value of an inner node is a weighted mean of its children's values, so it
is the split-weighted value of a forest with other shares. Every token of a node gets the node's advantage divided by
the number of leaves. Biased in every mode. The loss uses importance ratios per turn; that is the trainer's part.
Sources: arXiv 2601.04767; zzfoutofspace/ATPO vllm_rollout_with_tools_tree_offline.py.
"""

from dataclasses import replace
from typing import Final, Literal, assert_never

import numpy as np

from ramify.credit.forest import STEM, Array_N, Forest
from ramify.credit.grown import MEAN_SURPRISAL
from ramify.credit.selected import num_selected, of_selected, selected_leaves

Value = Literal["leaf_mean", "child_mean", "child_softmax"]
"""The weight of each child in its parent's value: its number of leaves; 1; or (published) the exponential of its mean
surprisal. The last favours uncertain children and does not estimate a return."""
Advantage = Literal["node_value", "diff_parent", "diff_global", "diff_localglobal"]
"""A node's value; its value minus its parent's; its value minus the whole tree's; or the sum of both differences."""
EPSILON: Final = 1e-6
"""Added to the population standard deviation (vllm_rollout_with_tools_tree_offline.py)."""


def at2po(forest: Forest, *, value: Value = "leaf_mean", advantage: Advantage = "node_value") -> Array_N:
    """(N,) turn credit over all grown leaves."""
    return turn_advantages(replace(forest, selected=None), value=value, advantage=advantage) / forest.num_leaves


def at2po_as_published(forest: Forest) -> Array_N:
    """(N,) turn credit with child_softmax and node_value, on the tree pruned to the selected leaves."""
    advantages = turn_advantages(forest, value="child_softmax", advantage="node_value")
    return of_selected(forest, advantages / forest.num_leaves)


def turn_advantages(forest: Forest, *, value: Value, advantage: Advantage, normalise: bool = True) -> Array_N:
    """(N,) advantage of each node; 0 for nodes with no selected leaf below, which enter no value."""
    values, root = turn_values(forest, value=value, normalise=normalise)
    is_stem = forest.parent == STEM
    parents = np.where(is_stem, root, values[forest.parent])
    match advantage:
        case "node_value":
            return values
        case "diff_parent":
            found = values - parents
        case "diff_global":
            found = values - root
        case "diff_localglobal":
            found = 2 * values - parents - root
        case _:
            assert_never(advantage)
    return np.where(num_selected(forest) > 0, found, 0.0)


def turn_values(forest: Forest, *, value: Value, normalise: bool = True) -> tuple[Array_N, float]:
    """(N,) value of each node, and the value of the bare prompt."""
    weights = _weights(forest, value) * (num_selected(forest) > 0)
    totals = np.bincount(forest.parent + 1, weights, minlength=1)[forest.parent + 1]
    rewards = np.full(len(forest), np.nan)
    rewards[forest.leaves] = _leaf_values(forest, normalise=normalise)
    shares = np.divide(weights, totals, out=np.zeros(len(forest)), where=totals > 0)
    graded = replace(forest, share=shares, reward=rewards)
    return graded.value, float(graded.mean)


def _leaf_values(forest: Forest, *, normalise: bool) -> Array_N:
    """(num_leaves,) rewards, z-scored over the selected leaves; 0 for the others, and 0 for all if the selected rewards
    are equal."""
    kept, values = selected_leaves(forest), forest.rewards.astype(np.float64)
    known = values[kept]
    if normalise and len(known):
        is_flat = bool((known == known[0]).all())
        values = values - values if is_flat else (values - known.mean()) / (known.std() + EPSILON)
    return np.where(kept, values, 0.0)


def _weights(forest: Forest, value: Value) -> Array_N:
    """(N,) weight of each node among its siblings."""
    match value:
        case "leaf_mean":
            return num_selected(forest)
        case "child_mean":
            return np.ones(len(forest))
        case "child_softmax":
            return np.exp(_surprisal(forest))
        case _:
            assert_never(value)


def _surprisal(forest: Forest) -> Array_N:
    """(N,) mean surprisal of the nodes; 0 where nothing was sampled."""
    known = {name: np.where(forest.num_tokens > 0, values, 0.0) for name, values in forest.measures.items()}
    return replace(forest, measures=known).measure(MEAN_SURPRISAL)
