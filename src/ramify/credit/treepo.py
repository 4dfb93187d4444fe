"""TreePO: a leaf's advantage averages its reward minus the mean of each group it belongs to. The groups are all leaves,
and the leaves below each fork on its path. Biased: each group includes the leaf itself, and prefixes with many forks
weigh more.

The script then whitens over the tokens of a batch; `rows/batch.py` does that. Source: arXiv 2508.17445;
multimodal-art-projection/TreePO verl/trainer/ppo/core_algos.py (`tree_reinforce_plus_plus_baseline`).
"""

from typing import Literal

import numpy as np
import numpy.typing as npt

from ramify.credit.forest import STEM, Array_N, Forest
from ramify.credit.group import Advantages, spread
from ramify.credit.segments import goes_on

Weighing = Literal["average", "group_size"]
"""How the terms of a leaf's groups are averaged."""


def treepo(forest: Forest) -> Array_N:
    """(N,) `subgroup_advantages` summed over the leaves through each token, divided by the number of leaves."""
    return spread(forest, subgroup_advantages(forest))


def subgroup_advantages(forest: Forest) -> Advantages:
    """(num_leaves,) mean over the groups of reward - group mean. Groups: all leaves, and the leaves below each inner
    segment."""
    return _advantages(forest, _ends_inner_segment(forest).astype(np.int64), num_all=1)


def treepo_as_published(forest: Forest, *, weighing: Weighing = "average", drop_flat: bool = False) -> Array_N:
    """(N,) like `treepo`, with `published_advantages`."""
    return spread(forest, published_advantages(forest, weighing=weighing, drop_flat=drop_flat))


def published_advantages(forest: Forest, *, weighing: Weighing = "average", drop_flat: bool = False) -> Advantages:
    """(num_leaves,) the same, but every node is a group. Groups of one leaf count only at the root, where their mean is
    0.

    `group_size` weighs each term by the size of its group. `drop_flat` leaves out groups of equal rewards, except the
    root's. By default, as in the script, terms are averaged and flat groups are kept.
    """
    sizes = forest.over_leaves(np.ones(forest.num_leaves, np.int64))
    counts = (sizes > 1) & ~_is_flat(forest) if drop_flat else sizes > 1
    weights = np.where(counts, sizes if weighing == "group_size" else 1, 0)
    if forest.num_leaves == 1:
        return forest.rewards.copy()
    return _advantages(forest, weights, num_all=forest.num_leaves if weighing == "group_size" else 1)


def _advantages(forest: Forest, weights: npt.NDArray[np.int64], *, num_all: int) -> Advantages:
    """Reward minus the weighted mean of the groups' means. `weights` (N,) are those of the nodes as groups; `num_all`
    is the weight of the group of all leaves.

    Rewards are shifted by the first one, so equal rewards give exactly 0.
    """
    if not forest.num_leaves:
        return forest.rewards
    rewards = forest.rewards - forest.rewards[0]
    means = forest.over_leaves(rewards) / forest.over_leaves(np.ones(forest.num_leaves, np.int64))
    sums, totals = (weights * means).tolist(), weights.tolist()
    for node, parent in enumerate(forest.parent.tolist()):
        sums[node] = sums[node] + (num_all * (rewards.sum() / len(rewards)) if parent == STEM else sums[parent])
        totals[node] += num_all if parent == STEM else totals[parent]
    baselines = [sums[leaf] / totals[leaf] for leaf in forest.leaves.tolist()]
    return rewards - np.array(baselines, rewards.dtype)


def _ends_inner_segment(forest: Forest) -> npt.NDArray[np.bool_]:
    """(N,) whether a node is the last of its segment and no leaf. This gives one node per group of leaves below a
    fork."""
    ends = ~forest.is_leaf
    ends[forest.parent[goes_on(forest)]] = False
    return ends


def _is_flat(forest: Forest) -> npt.NDArray[np.bool_]:
    """(N,) whether all rewards below a node are equal."""
    first: list[float] = forest.reward.tolist()
    is_flat = np.ones(len(forest), bool)
    parents: list[int] = forest.parent.tolist()
    for node, parent in reversed(list(enumerate(parents))):
        if parent != STEM:
            is_new = first[parent] != first[parent]
            is_flat[parent] &= is_flat[node] and (is_new or first[parent] == first[node])
            first[parent] = first[node]
    return is_flat
