"""Planned: a tree whose shape is drawn before its first token: so many children at the prompt, behind the first step, …

A number between whole ones is the lower one or, by a coin, the next: 2.3 children are two, and three with probability
0.3, whose shares are then a third each. What was planned below a path that ends early is not grown, and a child that
failed is not made up for. Nothing depends on tokens, so forks are predictable and exact credits take the tree; nor on
the order of outcomes. `ramify plan` measures which numbers pay (`docs/when-trees-pay.md`).

Draws, all at the first ask: a number for each place that is not whole, depth first.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Final

from ramify.core.command import Fork, Grow, Grown, Outcome
from ramify.core.errors import ConfigError
from ramify.core.strategy import Phase
from ramify.core.tree import ROOT, Tree
from ramify.strategies.draws import Draws
from ramify.strategies.flight import InFlight

MAX_LEAVES: Final = 4096
"""Of a tree: a slip of the keyboard is not grown."""
Place = tuple["Place", ...]
"""What was drawn for one place: its children's places."""


@dataclass(frozen=True, slots=True)
class PlannedConfig:
    """The shape. `ramify plan` makes one."""

    children: tuple[float, ...] = (8.0,)
    """Expected children at the prompt, behind the first step, behind the second, …; then paths grow to their ends."""

    def __post_init__(self) -> None:
        if not self.children or not all(1 <= number <= MAX_LEAVES for number in self.children):
            raise ConfigError(f"planned: there are 1 to {MAX_LEAVES} children at every depth, got {self.children!r}")
        if prod(self.children) > MAX_LEAVES:
            raise ConfigError(f"planned: children = {self.children!r} make more than {MAX_LEAVES} leaves")


class Planned:
    """Grow the shape that was drawn."""

    Config = PlannedConfig
    measures: frozenset[str] = frozenset()
    is_order_free = True
    unpredictable = ""

    def __init__(self, config: PlannedConfig, rng: Draws) -> None:
        self.config = config
        self._rng = rng
        self._in_flight: InFlight[Place] = InFlight()
        """What is to grow behind each step."""
        self._arrived: list[tuple[int, Place]] = []
        self._has_started = False

    def ask(self, tree: Tree) -> Sequence[Grow]:
        if not self._has_started:
            self._has_started = True
            self._arrived.append((ROOT, self._drawn(0)))
        arrived, self._arrived = self._arrived, []
        grows: list[Grow] = []
        places: list[Place] = []
        for node, place in arrived:
            fork = Fork(len(place), "planned")
            grows += [Grow(node, until="step" if child else "end", fork=fork) for child in place]
            places += place
        return self._in_flight.book(grows, places)

    def tell(self, tree: Tree, outcome: Outcome) -> None:
        place = self._in_flight.take(outcome)
        if place and isinstance(outcome, Grown) and not tree.is_ended(outcome.tip):
            self._arrived.append((outcome.tip, place))

    def is_done(self, tree: Tree) -> bool:
        return self._has_started and not self._in_flight and not self._arrived

    def phase(self, tree: Tree) -> Phase:
        if not self._has_started:
            return Phase("build")
        return Phase("collection" if self.is_done(tree) else "expansion")

    def _drawn(self, level: int) -> Place:
        if level == len(self.config.children):
            return ()
        wanted = self.config.children[level]
        number, rest = int(wanted), wanted - int(wanted)
        number += bool(rest and self._rng.random() < rest)
        return tuple(self._drawn(level + 1) for _ in range(number))
