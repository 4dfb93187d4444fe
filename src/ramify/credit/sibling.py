"""Sibling: credits that compare a node with its siblings, or that mix such comparisons along its path.

`sibling_loo` and `ancestor_loo` are exact wherever forks are predictable (`docs/credit.md`, lemma 2): their baselines
are split-weighted means of leaves that do not hold the token. `sibling_mean` and `split_mean` let the node's own return
into its baseline and shrink its term by a factor of their own; they are here to be compared with.
"""

import numpy as np

from ramify.credit.forest import STEM, Array_N, Forest


def sibling_loo(forest: Forest) -> Array_N:
    """(N,) w_c (Q_c - mean Q of the other siblings); an only child takes its nearest ancestor's that has siblings.

    Corrected SPO and TreeRPO.
    """
    return forest.weight * (forest.value - _inherited(forest, _others_mean(forest)))


def ancestor_loo(forest: Forest) -> Array_N:
    """(N,) w_c (Q_c - mean, over the node and its ancestors that have siblings, of the mean Q of those siblings).

    Corrected TreePO.
    """
    others, depth = _others_mean(forest), _num_forked(forest)
    sums = others.tolist()
    for node, parent in enumerate(forest.parent.tolist()):
        if parent != STEM:
            sums[node] = sums[node] + sums[parent]
    baseline = np.array(sums, forest.share.dtype) / np.maximum(depth, 1)
    return forest.weight * (forest.value - baseline)


def sibling_mean(forest: Forest) -> Array_N:
    """(N,) w_c (Q_c - mean Q of all siblings, its own included). Scaled by (K - 1) / K, biased where K differs."""
    groups = _groups(forest)
    means = np.zeros(len(forest), forest.share.dtype)
    for siblings in groups:
        means[siblings] = forest.value[siblings].sum() / len(siblings)
    return forest.weight * (forest.value - means)


def split_mean(forest: Forest) -> Array_N:
    """(N,) w_c (Q_c - V). Biased by 1 - w_c, which differs by depth."""
    return forest.weight * (forest.value - forest.mean)


def leaf_tree_loo(forest: Forest) -> Array_N:
    """(N,) equal leaves inside a stem, each against the plain leaf mean of the other stems.

    Exact only where all leaves of a stem weigh the same. A single stem is compared with 0.
    """
    stems, leaves = forest.stems.tolist(), forest.leaves
    stem_of = forest.stem[leaves]
    advantages = np.zeros(len(leaves), forest.share.dtype)
    for stem in stems:
        own = stem_of == stem
        others = forest.rewards[~own].sum() / max(1, int((~own).sum()))
        advantages[own] = (forest.rewards[own] - others) / (len(stems) * int(own.sum()))
    return forest.over_leaves(advantages)


def _groups(forest: Forest) -> list[list[int]]:
    """Indices of siblings, one list a parent; stems are siblings of each other."""
    groups: dict[int, list[int]] = {}
    for node, parent in enumerate(forest.parent.tolist()):
        groups.setdefault(parent, []).append(node)
    return list(groups.values())


def _others_mean(forest: Forest) -> Array_N:
    """(N,) mean Q of the other siblings; 0 for an only child."""
    means = np.zeros(len(forest), forest.share.dtype)
    for siblings in _groups(forest):
        if len(siblings) > 1:
            values = forest.value[siblings]
            means[siblings] = (values.sum() - values) / (len(siblings) - 1)
    return means


def _num_forked(forest: Forest) -> Array_N:
    """(N,) number of nodes on the path, the node included, that have siblings."""
    counts = [0] * len(forest)
    for siblings in _groups(forest):
        for node in siblings:
            parent = int(forest.parent[node])
            counts[node] = (0 if parent == STEM else counts[parent]) + (len(siblings) > 1)
    return np.array(counts, np.int64)


def _inherited(forest: Forest, values: Array_N) -> Array_N:
    """(N,) values of nodes with siblings, handed down to only children."""
    found = values.tolist()
    for siblings in _groups(forest):
        parent = int(forest.parent[siblings[0]])
        if len(siblings) == 1 and parent != STEM:
            found[siblings[0]] = found[parent]
    return np.array(found, forest.share.dtype)
