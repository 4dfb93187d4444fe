"""Split: credits by split weights, exact if forks are predictable (`docs/concepts/exactness.md`, lemmas 1 and 2).

The weight of a leaf is the product of the shares on its path. So the weighted sum over leaves has the same mean as one
path, whatever forked. These credits differ in the baseline, which uses only leaves that do not contain the token.
"""

import numpy as np

from ramify.credit.forest import Array_N, Forest


def split(forest: Forest) -> Array_N:
    """(N,) w_c Q_c: no baseline. Exact; the largest variance. Importance splitting."""
    return forest.weight * forest.value


def split_tree_loo(forest: Forest) -> Array_N:
    """(N,) w_c (Q_c - mean of the other stems' values). Exact for two or more stems (root branches).

    Equals RLOO if nothing forks. A single stem, for example if its siblings failed, is compared with 0.
    """
    stems = forest.stems
    if len(stems) < 2:
        return split(forest)
    values = forest.share[stems] * forest.value[stems] * len(stems)
    others = np.zeros(len(forest), forest.share.dtype)
    others[stems] = (values.sum() - values) / (len(stems) - 1)
    return forest.weight * (forest.value - others[forest.stem])


def subtree_loo(forest: Forest) -> Array_N:
    """(N,) w_c (Q_c - B_c). B_c is the split-weighted mean of all leaves not below c; 0 if there are none. Exact.

    Equals w_c (Q_c - V) / (1 - w_c) without random termination (coins). The default: the best, or within 1 % of the
    best, on the two problems measured.
    """
    weight, value, outside = forest.weight, forest.value, forest.outside
    has_others = outside > 1e-12
    baseline = (forest.mean - weight * value) / np.where(has_others, outside, 1)
    return weight * (value - np.where(has_others, baseline, 0))
