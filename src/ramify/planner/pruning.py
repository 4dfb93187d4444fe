"""Pruning: what a prune rule would have done to a pilot's paths, and with which probability it should end them.

The noise of a gradient is counted by tokens: each token counts as often as paths sample it, with the mean square of its
coefficient. Let C be the cost of a path and D the part of it after the rule fires. Let V be the variance of the return,
S the part of E[R^2] that comes from after the rule, and M the mean square there of the return minus its problem's mean.
Random termination (a coin) that lets paths go on with probability p makes the squares before the rule V + S (1/p - 1),
those after it M / p, and the cost C - (1 - p) D (`docs/concepts/credit.md`). Ending paths for good leaves (C - D) V; it
is exact only for the task with its paths truncated in this way.
"""

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from ramify.planner.levels import Levels
from ramify.planner.pilot import Pilot, PilotTree

Array = npt.NDArray[np.float64]
KEEPS: Final = tuple(round(0.05 * step, 2) for step in range(1, 21))
"""Probabilities that are tried. A path that goes on counts at most twenty times."""
LITTLE: Final = 0.01
"""Share of the return that ending paths for good may lose. Up to here, the truncated task is treated as the same
task."""


@dataclass(frozen=True, slots=True)
class Rule:
    """What the rule did, for the pilot and its resamples. Each array is (R,), per path."""

    fires: Array
    cost: Array
    """Cost after the rule fires."""
    returns: Array
    """E[R] that comes from there."""
    most_returns: Array
    """The same, with one more path that has the largest return in the pilot. A rule without an exception in a few paths
    may still have one."""
    squares: Array
    """E[R^2] that comes from there, also with one more path."""
    spread: Array
    """E[(R - mean of the problem)^2] of the paths there."""


def rule_of(pilot: Pilot, picks: Array) -> Rule:
    """`picks`: (R, num_problems) how often each problem counts."""
    sums = np.array([_of_tree(tree) for tree in pilot.trees])
    fires, cost, returns, squares, spread, paths = (picks @ sums).T / picks.sum(axis=1)
    largest = max(float((tree.reward[tree.is_leaf] ** 2).max()) for tree in pilot.trees)
    num_paths = paths * len(pilot.trees)
    prior = np.divide(fires, num_paths + 1, out=np.zeros_like(fires), where=num_paths > 0)
    mean_spread = np.divide(spread, fires, out=np.zeros_like(fires), where=fires > 0)
    return Rule(fires, cost, returns, returns + math.sqrt(largest) * prior, squares + largest * prior, mean_spread)


def best_keep(rule: Rule, found: Levels) -> float:
    """Best probability of going on after the rule fires, for the pilot itself. 0 = never go on, because that loses
    little of the return. 1 = the rule does not pay."""
    mean = float(found.mean[0])
    if mean and float(rule.returns[0]) <= LITTLE * mean:
        return 0.0
    return min(KEEPS, key=lambda keep: float(pruned_noise(rule, found, keep)[0]))


def pruned_noise(rule: Rule, found: Levels, keep: float) -> Array:
    """(R,) noise x cost of chains whose paths go on with probability `keep` after the rule fires. `keep` = 1 gives
    plain chains."""
    variance, cost = found.variance.sum(axis=1), found.cost.sum(axis=1)
    above, behind = (cost - rule.cost) * variance, np.zeros_like(cost)
    if keep:
        above += (cost - rule.cost) * rule.squares * (1 / keep - 1)
        behind = rule.cost * rule.spread / keep
    return (above + behind) * (cost - rule.cost * (1 - keep))


def _of_tree(tree: PilotTree) -> tuple[float, float, float, float, float, float]:
    """Per tree: share of paths that the rule ends early; cost, returns, squares and spread after it; number of leaves
    there."""
    weight, is_behind, is_leaf = tree.weight, tree.is_behind, tree.is_leaf
    last = is_behind & is_leaf
    mean = float((weight[is_leaf] * tree.reward[is_leaf]).sum())
    share, returns = weight[last], tree.reward[last]
    return (
        float(share.sum()),
        float((weight * tree.cost)[is_behind].sum()),
        float((share * returns).sum()),
        float((share * returns**2).sum()),
        float((share * (returns - mean) ** 2).sum()),
        float(last.sum()),
    )
