"""TreePO: paths grow segment by segment and fork at segment ends, as far as a budget of finished paths allows.

After each segment the free width is shared among the paths that continue: evenly, or by their logprobs. Each share is
decided before the tokens it concerns, so these forks are predictable. `fallback="random"` then continues finished paths
from randomly drawn segment ends until the width is used; these forks are post-hoc. A segment is a fixed number of
sampled tokens; it continues through tool calls and may end inside a turn. The last segment of `max_depth` runs to the
end of the path. A round waits for all paths while there is width to share; after that each path continues by itself. A
failed path keeps its slot, because a refill would be post-hoc.

Draws, each only where there is a choice: the number of stems (root branches); at a fallback the order of the finished
paths, then one cut for each continued path. The tree does not depend on the order of outcomes. Source: arXiv
2508.17445; multimodal-art-projection/TreePO vllm_rollout_spmd.py, recipe/treepo/run_treepo_train.sh.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Literal

import numpy as np

from ramify.core.command import Failed, Fork, Grow, Grown, Option, Outcome, Tokens
from ramify.core.errors import ConfigError, ContractError
from ramify.core.stop import ANSWERED
from ramify.core.strategy import Phase
from ramify.core.tree import ROOT, Tree
from ramify.strategies.parts.allotment import (
    Remainder,
    even_allotment,
    fallback_index,
    softmax,
    total_allotment,
    weighted_allotment,
)
from ramify.strategies.parts.draws import Draws, without_replacement
from ramify.strategies.parts.entropy import LOGPROBS
from ramify.strategies.parts.flight import InFlight


@dataclass(frozen=True, slots=True)
class TreePOConfig:
    """Defaults are the corrected ones; numbers are those of recipe/treepo/run_treepo_train.sh."""

    width: int = 16
    """Finished paths of a tree."""
    segment_tokens: int = 512
    """Sampled tokens of a segment."""
    max_depth: int = 14
    """Maximum number of segments of a path."""
    divergence: int = 2
    """Continuations of each path, as long as width is left."""
    first_divergence: tuple[int, int] = (2, 8)
    """Number of stems, drawn uniformly from a to b. The script sets 2 to 8, but its code never reads it and always uses
    `divergence`."""
    allotment: Literal["even", "sum", "mean", "segment"] = "even"
    """What decides the shares of the width: nothing (`even`), the sum or mean of a path's logprobs, or the mean in its
    last segment."""
    favours: Literal["unlikely", "likely"] = "unlikely"
    """Which paths get more width, if logprobs are used."""
    temperature: float = 1.0
    """Temperature of the shares, if logprobs decide them; above 0. A high one makes the shares equal."""
    remainder: Remainder = "first"
    fallback: Literal["random", "none"] = "random"
    """What happens if paths end and width is left: finished paths are continued from randomly drawn segment ends
    (post-hoc), or the width stays unused."""
    fallback_window: int = -1
    """Tokens between possible cuts; -1 = the length of a segment."""

    def __post_init__(self) -> None:
        low, high = self.first_divergence
        if min(self.width, self.segment_tokens, self.max_depth, self.divergence) < 1 or not 1 <= low <= high:
            raise ConfigError(f"treepo: numbers must be at least 1, first_divergence a range from 1 on, got {self!r}")
        if not 0 < self.temperature < math.inf or not (self.fallback_window == -1 or self.fallback_window > 0):
            raise ConfigError(f"treepo: temperature must be above 0, fallback_window above 0 or -1, got {self!r}")

    @property
    def planned_leaves(self) -> int:
        return self.width


AS_PUBLISHED = TreePOConfig(first_divergence=(2, 2), remainder="last")


@dataclass(slots=True)
class _Path:
    """One path. `index` numbers paths in the order asked, which timing cannot change."""

    index: int
    tip: int = ROOT
    depth: int = 0
    """Number of segments it has."""


_New = tuple[_Path, int | None, int, str]
"""A path, the position on its branch to continue from (None = its tip), the number of continuations, and the name of
the deciding rule."""


class TreePO:
    """Grow paths by segments within a width."""

    Config = TreePOConfig

    def __init__(self, config: TreePOConfig, rng: Draws) -> None:
        self.config = config
        self.measures = frozenset({LOGPROBS} if config.allotment != "even" else ())
        self.is_order_free = True
        self.post_hoc_reason = "" if config.fallback == "none" else "paths that have ended are cut and continued"
        self._rng = rng
        self._in_flight: InFlight[_Path] = InFlight()
        self._arrived: list[_Path] = []
        self._finished: list[_Path] = []
        """Paths that ended with an answer."""
        self._number = count()
        self._width = config.width
        """The configured width, less what failures and the budget took."""
        self._num_finished = 0
        self._num_finished_now = 0
        """Paths finished in this round."""
        self._round = 0

    def ask(self, tree: Tree) -> Sequence[Grow]:
        if not self._round:
            return self._start()
        if self._in_flight and (self._spare or not self._arrived):
            return []
        if self._arrived:
            return self._go_on(tree)
        return self._fall_back(tree) if self._is_to_fall_back else []

    def tell(self, tree: Tree, outcome: Outcome) -> None:
        path = self._in_flight.take(outcome)
        if isinstance(outcome, Failed):
            self._width = 0 if outcome.reason == "budget" else self._width - 1
        if not isinstance(outcome, Grown):
            return
        path.tip, path.depth = outcome.tip, path.depth + 1
        if not tree.is_ended(path.tip):
            self._arrived.append(path)
            return
        self._num_finished += 1
        self._num_finished_now += 1
        if tree.stop(path.tip) in ANSWERED:  # `soft_boxed_and_eos`
            self._finished.append(path)

    def is_done(self, tree: Tree) -> bool:
        return self._round > 0 and not self._in_flight and not self._arrived and not self._is_to_fall_back

    def phase(self, tree: Tree) -> Phase:
        if not self._round:
            return Phase("build")
        if self.is_done(tree):
            return Phase("collection", self._round)
        return Phase("expansion", self._round) if self._round > 1 else Phase("initial chains")

    @property
    def _spare(self) -> int:
        """Width that no path has taken."""
        return max(0, self._width - self._num_finished - len(self._in_flight) - len(self._arrived))

    @property
    def _is_to_fall_back(self) -> bool:
        return self.config.fallback != "none" and self._spare > 0

    def _start(self) -> Sequence[Grow]:
        low, high = (min(number, self.config.width) for number in self.config.first_divergence)
        number = low + (int(self._rng.integers(high - low + 1)) if high > low else 0)
        return self._grow([(_Path(0), None, number, "initial")])

    def _go_on(self, tree: Tree) -> Sequence[Grow]:
        """Every path that arrived continues, with its share of the width."""
        paths = sorted(self._arrived, key=lambda path: path.index)
        spare, finished_now = self._spare, self._num_finished_now
        self._arrived = []
        total = total_allotment(
            len(paths) + spare, finished_now=finished_now, active=len(paths), divergence=self.config.divergence
        )
        numbers = self._allotments(tree, paths, total)
        return self._grow([(path, None, number, "width") for path, number in zip(paths, numbers, strict=True)])

    def _allotments(self, tree: Tree, paths: Sequence[_Path], total: int) -> list[int]:
        if self.config.allotment == "even" or total == len(paths):
            return even_allotment(total, len(paths), remainder=self.config.remainder)
        sign = -1 if self.config.favours == "unlikely" else 1
        return weighted_allotment(
            softmax([sign * self._logprob(tree, path) for path in paths], self.config.temperature), total
        )

    def _logprob(self, tree: Tree, path: _Path) -> float:
        """The logprob of a path's sampled tokens that the allotment uses."""
        branch = tree.branch(path.tip)
        logprobs = branch.logprobs[branch.is_sampled].astype(np.float64)
        if np.isnan(logprobs).any():
            raise ContractError(f"treepo shares by logprobs, and those of node {path.tip} are missing")
        if self.config.allotment == "sum":
            return float(logprobs.sum())
        return float(logprobs[-self.config.segment_tokens if self.config.allotment == "segment" else 0 :].mean())

    def _fall_back(self, tree: Tree) -> Sequence[Grow]:
        """Continue finished paths from their cuts, or from the prompt if none ended with an answer."""
        finished = sorted(self._finished, key=lambda path: path.index)
        spare, going = self._spare, list[_New]()
        for path in without_replacement(finished, len(finished), self._rng) or [_Path(0)]:
            number = min(self.config.divergence, spare)
            spare -= number
            if number:
                going.append((*self._cut(tree, path), number, "fallback"))
        return self._grow(going)

    def _cut(self, tree: Tree, path: _Path) -> tuple[_Path, int | None]:
        """A path with the length of the kept part, and the position of the cut."""
        if path.tip == ROOT:
            return path, None
        config, branch = self.config, tree.branch(path.tip)
        sampled = np.flatnonzero(branch.is_sampled)
        window = config.segment_tokens if config.fallback_window == -1 else config.fallback_window
        block = 1 + int(self._rng.integers(math.ceil(len(sampled) / window)))
        kept = fallback_index(
            len(sampled), block, segment=config.segment_tokens, max_depth=config.max_depth, window=window
        )
        return _Path(0, path.tip, math.ceil(kept / config.segment_tokens)), int(sampled[kept])

    def _grow(self, going: Sequence[_New]) -> Sequence[Grow]:
        """The continuations of each path are one decision. A new round begins when nothing is in flight."""
        self._round += not self._in_flight
        self._num_finished_now = 0
        grows: list[Grow] = []
        paths: list[_Path] = []
        for path, at, number, rule in going:
            until = Tokens(self.config.segment_tokens) if path.depth + 1 < self.config.max_depth else "end"
            fork = Fork(number, rule) if number > 1 or rule != "width" else None
            why = (Option(path.tip, float(number), (("room", float(self._spare)),)),)
            grows += [Grow(path.tip, at=at, until=until, fork=fork, why=why) for _ in range(number)]
            paths += [_Path(next(self._number), path.tip, path.depth) for _ in range(number)]
        return self._in_flight.book(grows, paths)
