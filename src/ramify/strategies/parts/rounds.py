"""Rounds: chains from the bare prompt, then rounds of continuations. Tree-GRPO and AT2PO share this.

A round starts when everything asked before has ended, and reads the tree in canonical order, so the tree does not
depend on the order of outcomes. The strategy decides what a round grows (`expand`). A failed continuation is not
replaced. If the budget refuses one, no further round starts.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from ramify.core.command import Failed, Fork, Grow, Outcome
from ramify.core.strategy import Phase
from ramify.core.tree import ROOT, Tree


class Rounds(ABC):
    """Grows `num_chains` chains as one decision, then `num_rounds` rounds of `expand`."""

    measures: frozenset[str] = frozenset()
    is_order_free = True

    def __init__(self, num_chains: int, num_rounds: int) -> None:
        self.post_hoc_reason = "where the tree is expanded depends on how its chains went" if num_rounds else ""
        self._num_chains = num_chains
        self._num_rounds = num_rounds
        self._round = -1
        """The current round; 0 = the chains, -1 = nothing was asked yet."""
        self._num_in_flight = 0

    @abstractmethod
    def expand(self, tree: Tree) -> Sequence[Grow]:
        """The continuations of one round; an empty result ends the rounds. Called when nothing is in flight."""

    def ask(self, tree: Tree) -> Sequence[Grow]:
        if self._num_in_flight or self._round >= self._num_rounds:
            return []
        self._round += 1
        grows = self.expand(tree) if self._round else self._chains()
        self._num_in_flight = len(grows)
        if not grows:
            self._num_rounds = self._round
        return grows

    def tell(self, tree: Tree, outcome: Outcome) -> None:
        self._num_in_flight -= 1
        if isinstance(outcome, Failed) and outcome.reason == "budget":
            self._num_rounds = self._round

    def is_done(self, tree: Tree) -> bool:
        return not self._num_in_flight and self._round >= self._num_rounds

    def phase(self, tree: Tree) -> Phase:
        if self._round < 0:
            return Phase("build")
        if self.is_done(tree):
            return Phase("collection", self._round)
        return Phase("expansion", self._round) if self._round else Phase("initial chains")

    def _chains(self) -> Sequence[Grow]:
        fork = Fork(self._num_chains, "initial")
        return [Grow(ROOT, fork=fork) for _ in range(self._num_chains)]
