"""Sibling: credits that compare a node with its siblings, or that mix such comparisons along its path.

`sibling_loo` and `ancestor_loo` are exact if forks are predictable (`docs/concepts/exactness.md`, lemma 2): their
baselines are split-weighted means of leaves that do not contain the token. In `sibling_mean` and `split_mean`, the
baseline includes the node's own return, which shrinks each term by a different factor. They are here for comparison.
"""

import numpy as np

from ramify.credit.forest import STEM, Array_N, Forest
from ramify.credit.segments import siblings


def sibling_loo(forest: Forest) -> Array_N:
    """(N,) w_c (Q_c - mean Q of the other siblings). An only child uses the baseline of its nearest ancestor that has
    siblings.

    Corrected SPO and TreeRPO.
    """
    return forest.weight * (forest.value - _inherited(forest, _others_mean(forest)))


def ancestor_loo(forest: Forest) -> Array_N:
    """(N,) w_c (Q_c - B_c). B_c averages, over the node and its ancestors that have siblings, the mean Q of those
    siblings.

    Corrected TreePO.
    """
    others, depth = _others_mean(forest), _num_forked(forest)
    sums = others.tolist()
    for node, parent in enumerate(forest.parent.tolist()):
        if parent != STEM:
            sums[node] = sums[node] + sums[parent]
    baseline = np.array(sums, forest.share.dtype) / np.maximum(depth, 1)
    return forest.weight * (forest.value - np.where(depth > 0, baseline, 0))


def sibling_mean(forest: Forest) -> Array_N:
    """(N,) w_c (Q_c - mean Q of all siblings, including its own). Scaled by (K - 1) / K; biased if K differs."""
    means = np.zeros(len(forest), forest.share.dtype)
    for group in siblings(forest).values():
        means[group] = forest.value[group].sum() / len(group)
    return forest.weight * (forest.value - means)


def split_mean(forest: Forest) -> Array_N:
    """(N,) w_c (Q_c - V). Biased by the factor 1 - w_c, which differs by depth."""
    return forest.weight * (forest.value - forest.mean)


def leaf_tree_loo(forest: Forest) -> Array_N:
    """(N,) leaves of a stem (root branch) weigh the same; each is compared with the plain leaf mean of the other stems.

    Exact only if all leaves of a stem have the same split weight. A single stem is compared with 0.
    """
    stems, leaves = forest.stems.tolist(), forest.leaves
    stem_of = forest.stem[leaves]
    advantages = np.zeros(len(leaves), forest.share.dtype)
    for stem in stems:
        own = stem_of == stem
        others = forest.rewards[~own].sum() / max(1, int((~own).sum()))
        advantages[own] = (forest.rewards[own] - others) / (len(stems) * int(own.sum()))
    return forest.over_leaves(advantages)


def _others_mean(forest: Forest) -> Array_N:
    """(N,) mean Q of the other siblings; 0 for an only child."""
    means = np.zeros(len(forest), forest.share.dtype)
    for group in siblings(forest).values():
        if len(group) > 1:
            values = forest.value[group]
            means[group] = (values.sum() - values) / (len(group) - 1)
    return means


def _num_forked(forest: Forest) -> Array_N:
    """(N,) number of nodes on the path, including the node, that have siblings."""
    counts = [0] * len(forest)
    for parent, group in siblings(forest).items():
        for node in group:
            counts[node] = (0 if parent == STEM else counts[parent]) + (len(group) > 1)
    return np.array(counts, np.int64)


def _inherited(forest: Forest, values: Array_N) -> Array_N:
    """(N,) values of nodes with siblings. Only children inherit them."""
    found = values.tolist()
    for parent, group in siblings(forest).items():
        if len(group) == 1 and parent != STEM:
            found[group[0]] = found[parent]
    return np.array(found, forest.share.dtype)
