"""Tree-GRPO: each leaf is compared with the leaves of its prompt, and again with those of its own tree.

The sum of both z-scores goes to every token on the leaf's path. Biased: the means and deviations include the leaf
itself, and prefixes with many forks weigh more. Trees are stems (root branches) unless `Forest.tree` says otherwise.
Sources: arXiv 2509.21240; AMAP-ML/Tree-GRPO verl/trainer/ppo/core_algos.py, estimator `tree`.
"""

import numpy as np

from ramify.credit.forest import Array_N, Forest, Ints_N
from ramify.credit.group import Advantages, Deviation, Mode, group_advantages, spread
from ramify.credit.selected import of_selected, selected_leaves


def tree_advantages(
    rewards: Advantages, trees: Ints_N, *, mode: Mode = "corrected", deviation: Deviation = "sample"
) -> tuple[Advantages, Advantages]:
    """Advantages of the leaves of one prompt, (num_leaves,) each: over all leaves, and within their trees.

    As published, a leaf that is alone in its tree keeps its raw reward as the second one.
    """
    rewards = rewards.astype(np.float64)
    within = np.zeros(len(rewards))
    for number in np.unique(trees):
        members = trees == number
        within[members] = group_advantages(rewards[members], "grpo", mode=mode, deviation=deviation)
    return group_advantages(rewards, "grpo", mode=mode, deviation=deviation), within


def tree_grpo_leaves(forest: Forest, *, deviation: Deviation = "sample") -> Advantages:
    """(num_leaves,) z over the prompt + z within the tree, of all grown leaves."""
    over, within = tree_advantages(forest.rewards, _trees(forest), deviation=deviation)
    return over + within


def tree_grpo_published_leaves(forest: Forest) -> Advantages:
    """(num_leaves,) the same as published: from the selected leaves only. The other leaves are pruned first and get
    0."""
    kept = selected_leaves(forest)
    over, within = tree_advantages(forest.rewards[kept], _trees(forest)[kept], mode="as_published")
    advantages = np.zeros(forest.num_leaves)
    advantages[kept] = over + within
    return advantages


def tree_grpo(forest: Forest, *, deviation: Deviation = "sample") -> Array_N:
    """(N,) the leaves' advantages, summed over the leaves through each token and divided by the number of leaves."""
    return spread(forest, tree_grpo_leaves(forest, deviation=deviation))


def tree_grpo_as_published(forest: Forest) -> Array_N:
    """(N,) the same with the published rules for small groups and for leaves that are not selected."""
    return of_selected(forest, spread(forest, tree_grpo_published_leaves(forest)))


def _trees(forest: Forest) -> Ints_N:
    """(num_leaves,) number of the tree that each leaf belongs to."""
    return (forest.stem if forest.tree is None else forest.tree)[forest.leaves]
