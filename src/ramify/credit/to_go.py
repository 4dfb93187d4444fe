"""To go: the reward of a step counts only for the tokens before it.

What a path had earned before a token does not depend on the token. So it is left out of the returns that the token is
compared by: for a node with k rewarded steps before it, every leaf's return counts without the leaf's own first k
steps. Each credit that is exact for returns stays exact, because every term that is left out is known before the token
is drawn, or belongs to a path that does not hold the token (`docs/concepts/credit.md`).
"""

from collections.abc import Callable
from dataclasses import replace
from itertools import accumulate
from typing import Any

import numpy as np

from ramify.credit.forest import STEM, Array_N, Forest


def with_rewards_to_go(coefficients: Callable[[Forest], Array_N], forest: Forest) -> Array_N:
    """(N,) `coefficients` of the returns to go. Calls it once for each number of steps that some node has before it."""
    if forest.earned is None:
        return coefficients(forest)
    before = _steps_before(forest)
    earned = {leaf: _earned_after(forest, leaf) for leaf in forest.leaves.tolist()}
    found = np.zeros(len(forest), forest.share.dtype)
    for num_steps in np.unique(before).tolist():
        rewards = forest.reward.copy()
        for leaf, sums in earned.items():
            rewards[leaf] = rewards[leaf] - sums[min(num_steps, len(sums) - 1)]
        is_here = before == num_steps
        found[is_here] = coefficients(replace(forest, reward=rewards, earned=None))[is_here]
    return found


def _steps_before(forest: Forest) -> Array_N:
    """(N,) rewarded steps on the way to each node, without its own: that step comes after the node's tokens."""
    assert forest.earned is not None
    counts = [0] * len(forest)
    has_step = (forest.earned == forest.earned).tolist()
    for node, parent in enumerate(forest.parent.tolist()):
        if parent != STEM:
            counts[node] = counts[parent] + has_step[parent]
    return np.array(counts, np.int64)


def _earned_after(forest: Forest, leaf: int) -> list[Any]:
    """What the path to a leaf has earned after 0, 1, … rewarded steps."""
    assert forest.earned is not None
    path = [leaf]
    while (parent := int(forest.parent[path[-1]])) != STEM:
        path.append(parent)
    earned = forest.earned[path[::-1]].tolist()
    return list(accumulate((each for each in earned if each == each), initial=0))
