"""Group: credits that compare every leaf with the others of its prompt, as trainers do: GRPO, RLOO, Dr.GRPO, MaxRL.

A leaf's advantage goes to every token on its path: c = sum over the leaves below of A_l / num_leaves. `leaf_loo` is
exact on chains. On trees all are biased, because they weigh prefixes with many forks more. Sources:
`docs/concepts/credit.md`; verl core_algos.py (compute_grpo_outcome_advantage, compute_rloo_outcome_advantage); arXiv
2503.20783; PrimeIntellect-ai/prime-rl orchestrator/algo/max_rl.py.
"""

from typing import Any, Final, Literal, assert_never

import numpy as np
import numpy.typing as npt

from ramify.credit.forest import Array_N, Forest

Kind = Literal["grpo", "rloo", "dr_grpo", "max_rl"]
Mode = Literal["corrected", "as_published"]
"""corrected: a group of one, or of equal rewards, has advantage 0."""
Deviation = Literal["sample", "population"]
"""sample: divide by the sample standard deviation + 1e-6, as trainers do. population: divide by the population standard
deviation alone."""
Advantages = npt.NDArray[Any]
"""(num_leaves,) one per member of the group."""
EPSILON: Final = 1e-6
"""Added to the standard deviation (verl core_algos.py)."""


def group_advantages(
    rewards: Advantages, kind: Kind, *, mode: Mode = "corrected", deviation: Deviation = "sample"
) -> Advantages:
    """Advantages of the members of one group, (n,) rewards -> (n,).

    grpo: (r - mean) / std; rloo: r - mean of the others; dr_grpo: r - mean; max_rl: (r - mean) / mean, 0 if the mean is
    not positive. As published, a group of one has mean 0 and deviation 1.
    """
    size = len(rewards)
    if size == 0 or (mode == "corrected" and bool((rewards == rewards[0]).all())):
        return rewards - rewards
    is_alone = size == 1 and kind != "max_rl"
    mean = 0 * rewards[0] if is_alone else rewards.sum() / size
    match kind:
        case "grpo":
            return (rewards - mean) / _deviation(rewards, deviation)
        case "rloo":
            return rewards if is_alone else rewards - (rewards.sum() - rewards) / (size - 1)
        case "dr_grpo":
            return rewards - mean
        case "max_rl":
            return (rewards - mean) / mean if mean > 0 else rewards - rewards
        case _:
            assert_never(kind)


def leaf_grpo(forest: Forest, *, deviation: Deviation = "sample") -> Array_N:
    """(N,) GRPO's z-scores of the leaves, summed over the leaves through each token and divided by the number of
    leaves.

    Biased: the deviation and the mean both include the leaf itself. The trunk of a single tree gets zero.
    """
    rewards = forest.rewards.astype(np.float64)
    return spread(forest, group_advantages(rewards, "grpo", deviation=deviation))


def leaf_loo(forest: Forest) -> Array_N:
    """(N,) each leaf minus the mean of the others (RLOO). Exact on chains, biased on trees."""
    return spread(forest, group_advantages(forest.rewards, "rloo"))


def leaf_mean(forest: Forest) -> Array_N:
    """(N,) each leaf minus the mean of all. On n chains it is scaled by (n - 1) / n; on trees it is biased."""
    return spread(forest, group_advantages(forest.rewards, "dr_grpo"))


def spread(forest: Forest, advantages: Advantages) -> Array_N:
    """(N,) coefficients from (num_leaves,) leaf advantages: their sum below each node, divided by the number of
    leaves."""
    return forest.over_leaves(advantages / max(1, forest.num_leaves))


def _deviation(rewards: Advantages, deviation: Deviation) -> float:
    """The divisor in GRPO; 1 + epsilon for one member, as published."""
    if deviation == "population":
        return float(np.std(rewards))
    return float(np.std(rewards, ddof=1)) + EPSILON if len(rewards) > 1 else 1.0 + EPSILON
