"""Priors: the share of a child among its siblings before it is visited.

Priors are a softmax over one number for each child, its evidence: the mean logprob of its tokens, or its own score. It
is a mean because a sum would favour short segments. Siblings arrive over time, so priors are stored relative to the
best evidence so far and divided by their sum at each choice. Each arrival therefore renormalises all of them. A child
with the text of an earlier child is not a child of its own: its prior is added to that of the earlier one.

Noise mixes a Dirichlet draw into the priors of the root's children. Use it only to collect training data.

Sources: AlphaZero (arXiv 1712.01815: noise), treequest standard_mcts.py (softmax of scores).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ramify.core.errors import ConfigError, ContractError
from ramify.core.tree import Tree
from ramify.strategies.mcts.node import MCTSNode
from ramify.strategies.parts.posteriors import Variates

Evidence = Literal["logprob", "score", "uniform", "none"]
"""`uniform`: all children have equal shares that sum to 1; `none`: each child has weight 1, as in a bound without
priors."""


@dataclass(frozen=True, slots=True)
class Prior:
    """How priors are computed. Defaults are ours. Noise is off; its other defaults are AlphaZero's for chess."""

    evidence: Evidence = "logprob"
    """What a prior is made of: the mean logprob of the child's tokens, or its score. `uniform`: all children have equal
    shares that sum to 1; `none`: each child has weight 1, as in a bound without priors."""
    temperature: float = 1.0
    """Temperature of the softmax over the evidence; above 0. A high one makes priors equal."""
    noise: float = 0.0
    """Fraction of the Dirichlet draw in the priors of the root's children; AlphaZero's is 0.25."""
    noise_alpha: float = 0.3
    """Concentration of the Dirichlet draw; above 0. AlphaZero's for chess."""

    def __post_init__(self) -> None:
        if not (0 < self.temperature < math.inf and 0 < self.noise_alpha < math.inf and 0 <= self.noise < 1):
            raise ConfigError(f"prior: temperature and noise_alpha must be positive and noise in [0, 1), got {self!r}")


def arrive(parent: MCTSNode, child: MCTSNode, evidence: float, *, prior: Prior) -> bool:
    """Set the prior of a child that is about to be added; returns whether its siblings' priors changed scale."""
    if prior.evidence == "none":
        return False
    has_changed = _rescale(parent, evidence, prior.temperature)
    child.prior = child.weight = math.exp((evidence - parent.top_evidence) / prior.temperature)
    parent.sum_weights = child.weight + (parent.sum_weights if parent.children else 0.0)
    return has_changed


def merge(parent: MCTSNode, twin: MCTSNode, evidence: float, *, prior: Prior) -> bool:
    """Add the prior of a segment with the same text to `twin`; returns whether the siblings' priors changed scale."""
    if prior.evidence == "none":
        return False
    has_changed = _rescale(parent, evidence, prior.temperature)
    more = math.exp((evidence - parent.top_evidence) / prior.temperature)
    twin.prior += more
    twin.weight += more
    parent.sum_weights += more
    return has_changed


def _rescale(parent: MCTSNode, evidence: float, temperature: float) -> bool:
    """Make the priors relative to `evidence` if it is the best so far."""
    if evidence <= parent.top_evidence:
        return False
    by = math.exp((parent.top_evidence - evidence) / temperature)
    parent.top_evidence = evidence
    if not parent.children:
        return False
    for child in parent.children:
        child.prior *= by
        child.weight *= by
    parent.sum_weights *= by
    return True


def mix_noise(parent: MCTSNode, gammas: Sequence[float], *, share: float) -> None:
    """Mix the priors: (1 - share) of each prior and `share` of the Dirichlet draw given by `gammas`, one for each
    child."""
    total = sum(child.prior for child in parent.children)
    scale = share * total / ((1 - share) * sum(gammas))
    for child, gamma in zip(parent.children, gammas, strict=True):
        child.weight = child.prior + scale * gamma
    parent.sum_weights = total / (1 - share)


class Noise:
    """The noise in the priors of one node's children, which arrive over time: one gamma for each, in their order."""

    def __init__(self, prior: Prior, rng: Variates) -> None:
        self._prior = prior
        self._rng = rng
        self._gammas: list[float] = []

    def mix(self, parent: MCTSNode) -> bool:
        """Draw for the children that arrived since the last call; returns whether the weights of all have changed."""
        num_new = len(parent.children) - len(self._gammas)
        if not (self._prior.noise and num_new):
            return False
        self._gammas += [self._rng.standard_gamma(self._prior.noise_alpha) for _ in range(num_new)]
        mix_noise(parent, self._gammas, share=self._prior.noise)
        return True


def mean_logprob(tree: Tree, nodes: Sequence[int]) -> float:
    """Mean over all tokens sampled in `nodes`; 0 without any. Raises `ContractError` if logprobs are missing."""
    total, number = 0.0, 0
    for node in nodes:
        logprobs = tree.sampled_logprobs(node)
        if logprobs is None:
            raise ContractError(
                f"node {node} has no logprobs, which priors are made of; use an engine that returns them, or set "
                "strategy.options.prior.evidence = 'uniform'"
            )
        total += float(logprobs.sum(dtype="float64"))
        number += len(logprobs)
    return total / number if number else 0.0
