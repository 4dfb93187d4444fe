"""Segments: a full tree of token segments, as SPO-tree and TreeRPO grow it.

Every path forks at the end of its segment, into as many children as its level has in the configuration. Children of the
last level grow to their end. A child that ends early is a leaf and is not expanded. The whole plan is fixed before the
first token is sampled, so forks are predictable and exact credits accept the tree. No level waits for another: a path
continues as soon as it arrives. A failed child is dropped, and its subtree is not grown; a refill would be post-hoc.

Draws nothing; the tree does not depend on the order of outcomes. Sources: arXiv 2505.23564, AIFrameResearch/SPO
hybrid_inference_strategy.py; arXiv 2506.05183.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul

from ramify.core.command import Fork, Grow, Grown, Outcome, Tokens
from ramify.core.errors import ConfigError
from ramify.core.strategy import Phase
from ramify.core.tree import ROOT, Tree
from ramify.strategies.parts.draws import Draws
from ramify.strategies.parts.flight import InFlight


@dataclass(frozen=True, slots=True)
class SegmentsConfig:
    """The shape of the tree. Defaults: AIFrameResearch/SPO configs/polIter_rho1bSft2_spo_tree_GSM8K.jsonnet."""

    branching: tuple[int, ...] = (6, 6, 6)
    """Children at the prompt, at the end of the first segment, …: one number for each level."""
    segment_tokens: int = 30
    """Sampled tokens of a segment. Segments of the last level have no such limit."""

    def __post_init__(self) -> None:
        if not self.branching or min(self.branching) < 1 or self.segment_tokens < 1:
            raise ConfigError(f"segments: branching and segment_tokens must be at least 1, got {self!r}")

    @property
    def planned_leaves(self) -> int:
        return full_size(self.branching)[0]


def full_size(branching: Sequence[int]) -> tuple[int, int]:
    """(leaves, segments) of a tree in which no path ends early: (216, 258) for 6-6-6."""
    levels: list[int] = list(accumulate(branching, mul))
    return levels[-1], sum(levels)


class Segments:
    """Fork at the end of every segment, down to the last level."""

    Config = SegmentsConfig
    measures: frozenset[str] = frozenset()
    is_order_free = True
    post_hoc_reason = ""

    def __init__(self, config: SegmentsConfig, rng: Draws) -> None:
        self.config = config
        self._in_flight: InFlight[int] = InFlight()
        """The level of the segment that each command grows, starting at 1."""
        self._arrived: list[tuple[int, int]] = [(ROOT, 0)]
        """Nodes to fork at, with their levels."""
        self._level = 0

    def ask(self, tree: Tree) -> Sequence[Grow]:
        arrived, self._arrived = self._arrived, []
        grows: list[Grow] = []
        levels: list[int] = []
        for node, level in arrived:
            children = self._children(node, level)
            grows += children
            levels += [level + 1] * len(children)
        return self._in_flight.book(grows, levels)

    def tell(self, tree: Tree, outcome: Outcome) -> None:
        level = self._in_flight.take(outcome)
        self._level = max(self._level, level)
        is_last = level == len(self.config.branching)
        if isinstance(outcome, Grown) and not is_last and not tree.is_ended(outcome.tip):
            self._arrived.append((outcome.tip, level))

    def is_done(self, tree: Tree) -> bool:
        return not self._in_flight and not self._arrived

    def phase(self, tree: Tree) -> Phase:
        if self.is_done(tree):
            return Phase("collection", self._level)
        return Phase("expansion", self._level) if self._level else Phase("build")

    def _children(self, node: int, level: int) -> list[Grow]:
        number = self.config.branching[level]
        is_last = level + 1 == len(self.config.branching)
        fork = Fork(number, "segment")
        return [Grow(node, until="end" if is_last else Tokens(self.config.segment_tokens), fork=fork)] * number
