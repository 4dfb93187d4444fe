"""Branching: ARPO's and AEPO's rules for when a path forks, and AEPO's number of initial rollouts. Numbers only.

`delta_entropy` is the entropy of the last step minus the baseline of its path; `u` is uniform on [0, 1). Each
probability is the closed form of its decision. ARPO: arXiv 2507.19849, RUC-NLPIR/ARPO vllm_rollout_with_tools.py; AEPO:
arXiv 2510.14545, zzfoutofspace/ATPO AEPO/, the same file name.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypedDict

Clipping = Literal["score", "probability"]
"""What is clipped to [0, 1]. `score`: the published code clips the score before the comparison, so ARPO with bp >= 1
always forks and with bp < 0 never forks, whatever the entropy. `probability`: only the probability is clipped, as in
the paper's formula."""
Rounding = Literal["ceil", "int_plus_one"]


class Parameters(TypedDict):
    """Keyword arguments of both rules."""

    branch_probability: float
    entropy_weight: float
    clipping: Clipping


def arpo_probability(
    delta_entropy: float, *, branch_probability: float, entropy_weight: float, clipping: Clipping = "probability"
) -> float:
    """P(fork) = clip(bp + w dH, 0, 1)."""
    if clipping == "score" and not 0 <= branch_probability < 1:
        return float(branch_probability >= 1)
    return _clip(branch_probability + entropy_weight * delta_entropy)


def arpo_decision(
    u: float,
    delta_entropy: float,
    *,
    branch_probability: float,
    entropy_weight: float,
    clipping: Clipping = "probability",
) -> bool:
    """Whether the draw `u` forks: u - w dH <= bp."""
    score = u - entropy_weight * delta_entropy
    return (_clip(score) if clipping == "score" else score) <= branch_probability


def aepo_penalty(consecutive: float) -> float:
    """Factor on the score after `consecutive` rounds with a fork: 0 from 20 on."""
    return max(0.0, 1 - 0.05 * consecutive)


def aepo_probability(
    delta_entropy: float,
    consecutive: int,
    *,
    branch_probability: float,
    entropy_weight: float,
    clipping: Clipping = "probability",
) -> float:
    """P(fork) = clip(1 - bp / pen + w dH, 0, 1): raising bp makes AEPO fork less."""
    penalty = aepo_penalty(consecutive)
    if penalty == 0 or (clipping == "score" and not 0 < branch_probability <= 1):
        return float(branch_probability <= 0)
    return _clip(1 - branch_probability / penalty + entropy_weight * delta_entropy)


def aepo_decision(
    u: float,
    delta_entropy: float,
    consecutive: int,
    *,
    branch_probability: float,
    entropy_weight: float,
    clipping: Clipping = "probability",
) -> bool:
    """Whether the draw `u` forks: (u + w dH) pen >= bp."""
    score = (u + entropy_weight * delta_entropy) * aepo_penalty(consecutive)
    return (_clip(score) if clipping == "score" else score) >= branch_probability


@dataclass(frozen=True, slots=True)
class ForkRule:
    """One of the two rules with its parameters. ARPO's ignores `consecutive`."""

    name: Literal["arpo", "aepo"]
    branch_probability: float
    entropy_weight: float
    clipping: Clipping

    def decide(self, u: float, delta_entropy: float, consecutive: int) -> bool:
        """Whether the draw `u` forks."""
        if self.name == "arpo":
            return arpo_decision(u, delta_entropy, **self._parameters())
        return aepo_decision(u, delta_entropy, consecutive, **self._parameters())

    def probability(self, delta_entropy: float, consecutive: int) -> float:
        """P(fork) of one attempt."""
        if self.name == "arpo":
            return arpo_probability(delta_entropy, **self._parameters())
        return aepo_probability(delta_entropy, consecutive, **self._parameters())

    def _parameters(self) -> Parameters:
        return {
            "branch_probability": self.branch_probability,
            "entropy_weight": self.entropy_weight,
            "clipping": self.clipping,
        }


def dynamic_initial_rollouts(
    h_root: float, h_steps: Sequence[float], n: int, *, beta: float = 0.5, rounding: Rounding = "ceil"
) -> int:
    """How many chains to start with, 1 .. n: more if the first step is less certain than the steps after it.

    n sigmoid(beta (h_root - mean h_steps)), rounded up. No steps count as equal entropies. `int_plus_one` is the
    published rounding; it gives one more if the product is an integer.
    """
    delta = h_root - sum(h_steps) / len(h_steps) if h_steps else 0.0
    wanted = n / (1 + math.exp(-beta * delta))
    number = math.ceil(wanted) if rounding == "ceil" else int(wanted) + 1
    return max(1, min(number, n))


def _clip(value: float) -> float:
    return min(max(value, 0.0), 1.0)
