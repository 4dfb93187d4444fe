"""Pruning: what a task's prune rule would have done to a pilot's paths, and how surely it should give them up.

The exact way is a coin: where the rule fires a path goes on with probability p, and what it then brings counts 1/p. Of
a return R whose variance is V, let S be the part of E[R^2] that comes from paths behind the rule and D what these cost
of the cost C. Variance x cost is (V + S (1/p - 1)) (C - D (1 - p)), least at p = sqrt(S (C - D) / ((V - S) D)).
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ramify.planner.levels import Levels
from ramify.planner.pilot import Pilot, PilotTree

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Rule:
    """What the rule did, for the pilot and its resamples; each (R,), of one path."""

    fires: Array
    cost: Array
    """Behind the rule."""
    returns: Array
    """E[R] that comes from there."""
    squares: Array
    """E[R^2] that comes from there, with one more path of the largest return among the pilot's: a rule that met no
    exception in a few paths may have one."""


def rule_of(pilot: Pilot, picks: Array) -> Rule:
    """`picks`: (R, num_problems) how often each problem counts."""
    sums = np.array([_of_tree(tree) for tree in pilot.trees])
    fires, cost, returns, squares, paths = (picks @ sums).T / picks.sum(axis=1)
    largest = max(float((tree.reward[tree.is_leaf] ** 2).max()) for tree in pilot.trees)
    num_paths = paths * len(pilot.trees)
    prior = np.divide(fires, num_paths + 1, out=np.zeros_like(fires), where=num_paths > 0)
    return Rule(fires, cost, returns, squares + largest * prior)


def best_keep(rule: Rule, found: Levels) -> float:
    """The coin's best probability for the pilot itself; 1 = do without the rule."""
    variance, cost = float(found.variance[0].sum()), float(found.cost[0].sum())
    squares, behind = float(rule.squares[0]), float(rule.cost[0])
    if behind <= 0 or squares >= variance:
        return 1.0
    return min(math.sqrt(squares * (cost - behind) / ((variance - squares) * behind)), 1.0)


def pruned_noise(rule: Rule, found: Levels, keep: float) -> Array:
    """(R,) variance x cost of chains whose paths behind the rule go on with probability `keep`."""
    variance = found.variance.sum(axis=1) + rule.squares * (1 / keep - 1)
    return variance * (found.cost.sum(axis=1) - rule.cost * (1 - keep))


def _of_tree(tree: PilotTree) -> tuple[float, float, float, float, float]:
    """Of one tree: share of paths that the rule ends early, cost, returns and squares behind it, and their leaves."""
    weight, is_behind, is_leaf = tree.weight, tree.is_behind, tree.is_leaf
    last = is_behind & is_leaf
    rewards = np.where(last, tree.reward, 0.0)
    return (
        float(weight[last].sum()),
        float((weight * tree.cost)[is_behind].sum()),
        float((weight * rewards).sum()),
        float((weight * rewards**2).sum()),
        float(last.sum()),
    )
