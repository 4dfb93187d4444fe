"""TreeRL: a segment's credit is what it changes: its leaves' mean reward compared with the whole forest's and its
parent's.

Biased: leaf means weigh prefixes with many forks more, and both baselines include a segment's own leaves. Source: arXiv
2506.11902; THUDM/TreeRL tree_node.py (`leaf_normalize`, `compute_weighted_update`) and parallel_mcts.py
(`path_from_root_to_node`, `fill_in_paths`) with the flags of scripts/treerl-qw14b.sh.
"""

from typing import Final

import numpy as np

from ramify.credit.forest import STEM, Array_N, Forest
from ramify.credit.group import Advantages, group_advantages
from ramify.credit.segments import goes_on

NO_DIFFERENCE: Final = 1e-8
"""If a difference is smaller than this, that of the segment above is used (published)."""


def treerl(forest: Forest) -> Array_N:
    """(N,) the paper's process reward, divided by the number of stems (root branches)."""
    return process_rewards(forest) / max(1, len(forest.stems))


def process_rewards(forest: Forest) -> Array_N:
    """(N,) ((V - V of the forest) + (V - V of the segment above)) / sqrt(leaves below). V is the mean reward below."""
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
    """(N,) published process rewards times the number of leaves below, divided by the number of all leaves.

    Rows of all leaves would sum to this. Rows of only the selected leaves carry each token once, times the number of
    selected leaves below it divided by the number of all selected. This is the published gradient, in which every row
    trains the token with the reward.
    """
    num_leaves = _num_leaves(forest)
    return published_rewards(forest) * num_leaves / max(1, forest.num_leaves)


def published_rewards(forest: Forest) -> Array_N:
    """(N,) v + d: v from `published_values`; d = v - v of the parent, or the parent's d if that difference is below
    1e-8."""
    values, overall = published_values(forest)
    differences = (values - _of_parents(forest, values, overall)).tolist()
    for node, parent in enumerate(forest.parent.tolist()):
        if parent != STEM and abs(differences[node]) < NO_DIFFERENCE:
            differences[node] = differences[parent]
    return values + np.array(differences)


def published_values(forest: Forest) -> tuple[Array_N, float]:
    """(N,) mean leave-one-out reward below each node / sqrt(number of selected leaves below, at least 1); and the
    root's."""
    rewards = leave_one_out(forest)
    selected = forest.selected[forest.leaves] if forest.selected is not None else np.ones(forest.num_leaves, bool)
    means = forest.over_leaves(rewards) / _num_leaves(forest)
    overall = float(rewards.mean()) if len(rewards) else 0.0
    kept = np.maximum(forest.over_leaves(selected.astype(np.float64)), 1)
    return means / np.sqrt(kept), overall / max(1.0, float(selected.sum())) ** 0.5


def leave_one_out(forest: Forest) -> Advantages:
    """(num_leaves,) float64, each reward minus the mean of the others; 0 if all are equal."""
    return group_advantages(forest.rewards.astype(np.float64), "rloo")


def _num_leaves(forest: Forest) -> Array_N:
    return forest.over_leaves(np.ones(forest.num_leaves))


def _of_parents(forest: Forest, values: Array_N, overall: float) -> Array_N:
    """(N,) `values` of each node's parent; `overall` for stems."""
    return np.where(forest.parent == STEM, overall, values[forest.parent])
