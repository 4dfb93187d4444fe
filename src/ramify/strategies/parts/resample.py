"""Resample: AT2PO's choice of the steps to sample again, by surprisal minus a penalty for the branches beside them.

Resampling a step means expanding its parent: the new step is a sibling and reuses the parent's observation. Source:
zzfoutofspace/ATPO vllm_rollout_with_tools_tree_offline.py, `sample_expansion_nodes`.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Literal

from ramify.core.errors import ContractError
from ramify.core.stop import STOP_WORDS
from ramify.core.tree import ROOT, Tree
from ramify.strategies.parts.entropy import mean_surprisal

TooFew = Literal["once", "repeat"]
"""If there are fewer candidates than wanted: take each once, or repeat them from the best on (published)."""


@dataclass(frozen=True, slots=True)
class Penalty:
    """Subtracted from a step's score for every branch at its parent after the first."""

    weight: float = 0.05
    num_initial: int = 1
    """Number of branches at the bare prompt without a penalty."""

    def of(self, tree: Tree, node: int) -> float:
        """The penalty of `node`. The penalty of the root counts its own children."""
        place = origin(tree, node)
        return self.weight * max(0, _num_branches(tree, place) - (self.num_initial if place == ROOT else 1))


def step_surprisal(tree: Tree, node: int) -> float:
    """Mean surprisal of a step; 0 if nothing was sampled. Raises `ContractError` without logprobs."""
    logprobs = tree.sampled_logprobs(node)
    if logprobs is None:
        raise ContractError(f"node {node} has no logprobs, which this choice reads; use an engine that returns them")
    return mean_surprisal(logprobs) or 0.0


def scores(
    tree: Tree,
    nodes: Iterable[int],
    penalty: Penalty = Penalty(),
    *,
    surprisal: Callable[[Tree, int], float] = step_surprisal,
) -> dict[int, float]:
    """Score of each node, in the given order."""
    return {node: surprisal(tree, node) - penalty.of(tree, node) for node in nodes}


def highest(scored: Mapping[int, float], k: int, too_few: TooFew = "once") -> list[int]:
    """The k nodes with the highest scores; ties in the order of `scored`."""
    nodes = sorted(scored, key=scored.__getitem__, reverse=True)
    return nodes[:k] if too_few == "once" else list(islice(cycle(nodes), k))


def origin(tree: Tree, node: int) -> int:
    """The node to expand to resample a step: its parent, or the root for the root itself."""
    parent = tree.parent(node)
    return ROOT if parent is None else parent


def _num_branches(tree: Tree, node: int) -> int:
    """Number of policy children of `node`, without failed ones."""
    stops = map(tree.stop, tree.policy_children(node))
    return sum(stop is None or not STOP_WORDS[stop].is_failure for stop in stops)
