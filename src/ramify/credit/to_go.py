"""To go: the reward of a step counts only for the tokens before it.

What a path had earned before a token does not depend on the token. So it is left out of the returns that the token is
compared by: for a node with k rewarded steps before it, every leaf's return counts without the leaf's own first k
steps. Each credit that is exact for returns stays exact, because every term that is left out is known before the token
is drawn, or belongs to a path that does not hold the token (`docs/concepts/credit.md`).
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from ramify.credit.forest import STEM, Array_N, Forest


def with_rewards_to_go(coefficients: Callable[[Forest], Array_N], forest: Forest) -> Array_N:
    """(N,) `coefficients` of the returns to go. O(nodes) for each number of steps that some node has before it."""
    if forest.earned is None:
        return coefficients(forest)
    before, firsts = _steps_before(forest), _earned_by_steps(forest)
    found = np.zeros(len(forest), forest.share.dtype)
    for num_steps in np.unique(before).tolist():
        rewards = forest.reward.copy()
        for leaf in forest.leaves.tolist():
            rewards[leaf] = rewards[leaf] - sum(firsts[leaf][:num_steps])
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


def _earned_by_steps(forest: Forest) -> dict[int, list[Any]]:
    """Leaf -> what each rewarded step on its path adds to its return, in order."""
    assert forest.earned is not None
    earned, parents = forest.earned.tolist(), forest.parent.tolist()
    found: dict[int, list[Any]] = {}
    for leaf in forest.leaves.tolist():
        path: list[Any] = []
        node: int = leaf
        while node != STEM:
            if earned[node] == earned[node]:
                path.append(earned[node])
            node = parents[node]
        found[leaf] = path[::-1]
    return found
