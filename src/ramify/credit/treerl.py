"""TreeRL: a segment is worth what it changes: its leaves' mean reward against the whole forest's and its parent's.

Biased: leaf means weigh fork-rich prefixes more, and a segment's own leaves are in both baselines. Source: arXiv
2506.11902; THUDM/TreeRL tree_node.py (`leaf_normalize`, `compute_weighted_update`) and parallel_mcts.py
(`path_from_root_to_node`, `fill_in_paths`) with the flags of scripts/treerl-qw14b.sh.
"""

from typing import Final

import numpy as np

from ramify.credit.forest import STEM, Array_N, Forest
from ramify.credit.group import Advantages, group_advantages
from ramify.credit.segments import goes_on

NO_DIFFERENCE: Final = 1e-8
"""A difference below this is taken from the segment above (published)."""


def treerl(forest: Forest) -> Array_N:
    """(N,) the paper's process reward over the number of stems."""
    return process_rewards(forest) / max(1, len(forest.stems))


def process_rewards(forest: Forest) -> Array_N:
    """(N,) ((V - V of the forest) + (V - V of the segment above)) / sqrt(leaves below), V the mean reward below."""
    if not len(forest):
        return np.empty(0)
    means = leaf_means(forest)
    overall = float(forest.rewards.astype(np.float64).mean())
    above = _of_parents(forest, means, overall).tolist()
    for node in np.flatnonzero(goes_on(forest)).tolist():
        above[node] = above[int(forest.parent[node])]
    return (2 * means - overall - np.array(above)) / np.sqrt(_num_leaves(forest))


def leaf_means(forest: Forest) -> Array_N:
    """(N,) float64 plain mean reward of the leaves below each node."""
    return forest.over_leaves(forest.rewards.astype(np.float64)) / _num_leaves(forest)


def treerl_as_published(forest: Forest) -> Array_N:
    """(N,) published process rewards times leaves below, over all leaves.

    That is what all leaves as rows would sum to. Rows of the selected leaves alone carry each token once, times the
    selected leaves below it over their number: the published gradient, where every row trains it with the reward.
    """
    num_leaves = _num_leaves(forest)
    return published_rewards(forest) * num_leaves / max(1, forest.num_leaves)


def published_rewards(forest: Forest) -> Array_N:
    """(N,) v + d: v as `published_values`, d = v - v of the parent or, where that is below 1e-8, the parent's d."""
    values, overall = published_values(forest)
    differences = (values - _of_parents(forest, values, overall)).tolist()
    for node, parent in enumerate(forest.parent.tolist()):
        if parent != STEM and abs(differences[node]) < NO_DIFFERENCE:
            differences[node] = differences[parent]
    return values + np.array(differences)


def published_values(forest: Forest) -> tuple[Array_N, float]:
    """(N,) mean leave-one-out reward below each node over sqrt(selected leaves below, if any); and the root's."""
    rewards = leave_one_out(forest)
    selected = forest.selected[forest.leaves] if forest.selected is not None else np.ones(forest.num_leaves, bool)
    means = forest.over_leaves(rewards) / _num_leaves(forest)
    overall = float(rewards.mean()) if len(rewards) else 0.0
    kept = np.maximum(forest.over_leaves(selected.astype(np.float64)), 1)
    return means / np.sqrt(kept), overall / max(1.0, float(selected.sum())) ** 0.5


def leave_one_out(forest: Forest) -> Advantages:
    """(num_leaves,) float64 each reward less the mean of the others; 0 where all are equal."""
    return group_advantages(forest.rewards.astype(np.float64), "rloo")


def _num_leaves(forest: Forest) -> Array_N:
    return forest.over_leaves(np.ones(forest.num_leaves))


def _of_parents(forest: Forest, values: Array_N, overall: float) -> Array_N:
    """(N,) `values` of each node's parent; `overall` for stems."""
    return np.where(forest.parent == STEM, overall, values[forest.parent])
