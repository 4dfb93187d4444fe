"""DeepSearch: every segment gets the value that the search stored for it; the last segment of a path gets the path's
result.

The stored values are recomputed from the forest: expansions are taken in the order they were decided; of each, the one
finished child that the search chose is backed up along its path. The strategy need not store anything, so this credit
works on any tree whose nodes have logprobs. Biased: stored values are sums of weighted results, but the mean subtracted
from them is a mean of results. So even where most paths succeed, a trunk may get a negative coefficient. Source:
smiles724/DeepSearch sglang_mcts_wrapper.py, advantage_fn.py (`sibling_mean_std`), round0.sh.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from ramify.core.backup import backed_up, backup_weight, final_value, terminal_choice
from ramify.core.errors import ContractError
from ramify.credit.forest import STEM, Array_N, Forest
from ramify.credit.group import EPSILON
from ramify.credit.grown import MEAN_SURPRISAL
from ramify.credit.segments import goes_on

Deviation = Literal["none", "population"]
"""What advantages are divided by: nothing, as in round0.sh, or the standard deviation of the final scores + 1e-6."""


@dataclass(frozen=True, slots=True)
class Overlong:
    """A penalty that grows over the last `buffer` of `limit` tokens. Defaults: round0.sh."""

    limit: int = 16384
    buffer: int = 4096
    factor: float = 1.0

    def penalty(self, num_tokens: int) -> float:
        """0 up to limit - buffer tokens; then it falls linearly by `factor` per `buffer` tokens."""
        return min((self.limit - self.buffer - num_tokens) / self.buffer * self.factor, 0.0)


OVERLONG: Final = Overlong()


def deepsearch(forest: Forest) -> Array_N:
    """(N,) (value - mean final value of all leaves) / number of leaves, each token once; 0 if all leaves are equal.

    A finished child that was not backed up is trained with its own result.
    """
    search = _Search(forest)
    ends = search.final[forest.leaves]
    if not len(ends) or bool((ends == ends[0]).all()):
        return np.zeros(len(forest))
    return (search.value - ends.mean()) / len(ends)


def deepsearch_as_published(forest: Forest, *, deviation: Deviation = "none", overlong: Overlong = OVERLONG) -> Array_N:
    """(N,) sum of a token's advantages over the backed-up paths it lies on, divided by the number of such paths.

    So a trunk counts once per path, and tokens on no such path are not trained. A single path has the baseline 0.
    """
    search = _Search(forest)
    penalties = np.array([overlong.penalty(int(search.num_tokens[leaf])) for leaf in search.chosen])
    scores = search.final[search.chosen] + penalties
    is_alone = len(scores) < 2
    mean = 0.0 if is_alone else scores.mean()
    scale = 1.0 if deviation == "none" else (1.0 if is_alone else float(np.std(scores))) + EPSILON
    total = np.zeros(len(forest))
    for leaf, penalty in zip(search.chosen, penalties, strict=True):
        path = search.path(leaf)
        total[path] += (search.value[path] + penalty - mean) / scale
    return total / max(1, len(scores))


class _Search:
    """A search, recomputed from what it grew. Arrays are (N,)."""

    def __init__(self, forest: Forest) -> None:
        self._parent: list[int] = forest.parent.tolist()
        self._goes_on: list[bool] = goes_on(forest).tolist()
        self._decision: list[int] = self._parent if forest.decision is None else forest.decision.tolist()
        self.num_tokens = self._summed(forest.num_tokens)
        """Number of sampled tokens from the prompt to the end of each node."""
        self.final = self._final(forest)
        """Value of the path whose last segment contains the node; NaN where no path ends."""
        surprisal = self._summed(_surprisal(forest)) / np.maximum(self.num_tokens, 1)
        self.chosen = [self._choice(leaves, surprisal) for leaves in self._expansions(forest)]
        """Leaves that were backed up, in order."""
        self.stored = self._stored()
        """What the backups stored in each segment."""
        self.value = np.where(np.isnan(self.final), np.tanh(self.stored), self.final)
        """What a segment's tokens are trained with, before the mean is subtracted."""

    def path(self, leaf: int) -> list[int]:
        """Nodes from a leaf up to its stem."""
        nodes = [leaf]
        while (parent := self._parent[nodes[-1]]) != STEM:
            nodes.append(parent)
        return nodes

    def _summed(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Sums of the nodes' values from the stem (root branch) to each node."""
        sums = values.tolist()
        for node, parent in enumerate(self._parent):
            if parent != STEM:
                sums[node] += sums[parent]
        return np.array(sums)

    def _final(self, forest: Forest) -> npt.NDArray[np.float64]:
        final = np.array([final_value(float(reward)) for reward in forest.reward], np.float64)
        for node in reversed(range(len(final))):
            if self._goes_on[node]:
                final[self._parent[node]] = final[node]
        return final

    def _expansions(self, forest: Forest) -> list[list[int]]:
        """The finished children of each expansion, given by their leaves, in the order they were decided."""
        finished: dict[tuple[int, int], list[int]] = {}
        for leaf in map(int, forest.leaves):
            first = leaf
            while self._goes_on[first]:
                first = self._parent[first]
            finished.setdefault((self._decision[first], self._parent[first]), []).append(leaf)
        return [leaves for _, leaves in sorted(finished.items())]

    def _choice(self, leaves: Sequence[int], surprisal: npt.NDArray[np.float64]) -> int:
        return leaves[terminal_choice(self.final[leaves].tolist(), surprisal[leaves].tolist())]

    def _stored(self) -> npt.NDArray[np.float64]:
        depth = self._summed(1 - np.array(self._goes_on, np.int64)).tolist()
        stored = [0.0] * len(depth)
        for leaf in self.chosen:
            value = float(self.final[leaf])
            for node in self.path(leaf):
                stored[node] = backed_up(stored[node], value, backup_weight(depth[node], depth[leaf] + 1))
        return np.array(stored)


def _surprisal(forest: Forest) -> npt.NDArray[np.float64]:
    """(N,) minus the sum of the logprobs of each node's sampled tokens."""
    means = forest.measures.get(MEAN_SURPRISAL, np.full(len(forest), np.nan))
    if np.isnan(means[forest.num_tokens > 0]).any():
        raise ContractError("this credit needs the logprobs of all sampled tokens; use an engine that returns them")
    return np.where(forest.num_tokens > 0, means * forest.num_tokens, 0.0)
