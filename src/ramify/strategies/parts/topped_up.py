"""Topped up: runs any strategy, then adds fresh chains from the bare prompt until the tree has enough leaves to train
on.

For trainers that need n rows from every tree. The number of added chains depends on tokens already sampled, so the
chains are post-hoc and the trees' credit is not called exact. If the added chains all end without a trainable leaf, or
the budget refuses one, no more are added: a tree may still have too few leaves.
"""

from collections.abc import Sequence

from ramify.core.command import Command, Failed, Fork, Grow, Outcome
from ramify.core.errors import ConfigError
from ramify.core.stop import STOP_WORDS
from ramify.core.strategy import Phase, Strategy
from ramify.core.tree import ROOT, Tree


class ToppedUp:
    """Runs `strategy`, then adds chains up to `min_leaves` trainable leaves. Draws nothing itself."""

    def __init__(self, strategy: Strategy, min_leaves: int) -> None:
        if min_leaves < 1:
            raise ConfigError(f"min_leaves = {min_leaves!r}: at least 1 leaf")
        self.strategy = strategy
        self.min_leaves = min_leaves
        self.is_order_free = strategy.is_order_free
        self.post_hoc_reason = strategy.post_hoc_reason or "chains are added where a tree has too few leaves"
        self._num_in_flight = 0
        self._num_leaves = -1
        """Number of leaves when chains were last added; -1 = never added."""
        self._is_done = False

    @property
    def measures(self) -> frozenset[str]:
        return self.strategy.measures

    def ask(self, tree: Tree) -> Sequence[Command]:
        commands: Sequence[Command] = [] if self.strategy.is_done(tree) else self.strategy.ask(tree)
        # A strategy may find out only in `ask` that it is done.
        if not commands and not self._num_in_flight and self.strategy.is_done(tree):
            commands = self._top_up(tree)
        self._num_in_flight += len(commands)
        return commands

    def tell(self, tree: Tree, outcome: Outcome) -> None:
        self._num_in_flight -= 1
        if not self._is_topping_up:
            self.strategy.tell(tree, outcome)
        elif isinstance(outcome, Failed) and outcome.reason == "budget":
            self._is_done = True

    def is_done(self, tree: Tree) -> bool:
        return self._is_done and not self._num_in_flight

    def phase(self, tree: Tree) -> Phase:
        if self._is_topping_up and not self.is_done(tree):
            return Phase("expansion")
        return self.strategy.phase(tree)

    @property
    def _is_topping_up(self) -> bool:
        return self._num_leaves >= 0

    def _top_up(self, tree: Tree) -> Sequence[Command]:
        """As many chains as leaves are missing. Returns none and is done if none are missing or the last chains added
        no leaf."""
        if self._is_done:
            return []
        found = sum(_may_be_trained(tree, leaf) for leaf in tree.leaves())
        missing = self.min_leaves - found
        if missing <= 0 or found <= self._num_leaves:
            self._is_done = True
            return []
        self._num_leaves = found
        fork = Fork(missing, "top_up")
        return [Grow(ROOT, fork=fork) for _ in range(missing)]


def _may_be_trained(tree: Tree, leaf: int) -> bool:
    return STOP_WORDS[tree.stop(leaf) or ""].is_trainable
