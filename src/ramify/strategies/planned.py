"""Planned: the shape of the tree is drawn before its first token: the children at the prompt, after the first step, and
so on.

A fractional number is rounded up or down at random: 2.3 children are three with probability 0.3, and then each has a
share of one third; otherwise they are two. A number below 1 is random termination ("coin" or "roulette" in the code):
with 0.4 children a path continues as one path of share 2.5 with probability 0.4, and otherwise ends there. If a path
ends early, its planned children are not grown. A failed child is not replaced. The shape depends neither on tokens nor
on the order of outcomes, so forks are predictable and exact credits accept the tree. `ramify plan` measures which
numbers pay off (`docs/choose/fork.md`).

Draws, all at the first ask: one number for each fractional place, depth first.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul
from typing import Final, Literal

from ramify.core.command import Close, Command, Fork, Grow, Grown, Outcome, Tokens, roulette
from ramify.core.errors import ConfigError
from ramify.core.strategy import Phase
from ramify.core.tree import ROOT, Tree
from ramify.strategies.parts.draws import Draws
from ramify.strategies.parts.flight import InFlight

MAX_LEAVES: Final = 4096
"""Maximum number of leaves of a tree. It stops a typing mistake from growing a huge tree."""
MIN_KEEP: Final = 0.05
"""Random termination gives a surviving path a weight of at most 1 / 0.05 = 20. With a higher weight, a few survivors
would dominate the gradient."""


@dataclass(frozen=True, slots=True)
class PlannedConfig:
    """The shape of the tree. `ramify plan` creates one."""

    children: tuple[float, ...] = (8.0,)
    """Expected children at the prompt, after the first step, after the second, …; then paths grow to their ends."""
    segment_tokens: int | None = None
    """Sampled tokens between two places of the plan; None = one step."""

    def __post_init__(self) -> None:
        if not (self.children[:1] >= (1,) and all(MIN_KEEP <= number <= MAX_LEAVES for number in self.children)):
            raise ConfigError(
                f"planned: children = {self.children!r}: from 1 to {MAX_LEAVES} at the prompt, from {MIN_KEEP} behind "
                "it, where less than 1 is a coin that ends paths"
            )
        widths: list[float] = list(accumulate(self.children, mul))
        if max(widths) > MAX_LEAVES:
            raise ConfigError(f"planned: children = {self.children!r} make more than {MAX_LEAVES} leaves")
        if self.segment_tokens is not None and self.segment_tokens < 1:
            raise ConfigError(f"planned: segment_tokens = {self.segment_tokens!r}: at least 1, or none for whole steps")

    @property
    def planned_leaves(self) -> float:
        """Their mean: paths that a coin ends are leaves, too."""
        num_going, num_ended = 1.0, 0.0
        for number in self.children:
            num_ended += num_going * max(0.0, 1 - number)
            num_going *= number
        return num_ended + num_going


@dataclass(frozen=True, slots=True)
class _Place:
    """What was drawn for one place of the plan."""

    fork: Fork | None
    """None = random termination ends the path here."""
    children: tuple["_Place | None", ...] = ()
    """For each child, what was drawn for the place where it ends; None = the child grows to its end."""


class Planned:
    """Draw the shape of the tree, then grow it."""

    Config = PlannedConfig
    measures: frozenset[str] = frozenset()
    is_order_free = True
    post_hoc_reason = ""

    def __init__(self, config: PlannedConfig, rng: Draws) -> None:
        self.config = config
        tokens = config.segment_tokens
        self._until: Literal["step"] | Tokens = "step" if tokens is None else Tokens(tokens)
        self._rng = rng
        self._in_flight: InFlight[_Place | None] = InFlight()
        """The place to continue with after each growth."""
        self._arrived: list[tuple[int, _Place]] = []
        self._has_started = False

    def ask(self, tree: Tree) -> Sequence[Command]:
        if not self._has_started:
            self._has_started = True
            self._arrived.append((ROOT, self._drawn(0)))
        arrived, self._arrived = self._arrived, []
        commands: list[Command] = []
        places: list[_Place | None] = []
        for node, place in arrived:
            commands += self._behind(node, place)
            places += place.children if place.fork else (None,)
        return self._in_flight.book(commands, places)

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

    def _behind(self, node: int, place: _Place) -> Sequence[Command]:
        if place.fork is None:
            return [Close(node, "a coin of the plan", stop="roulette")]
        return [Grow(node, until=self._until if child else "end", fork=place.fork) for child in place.children]

    def _drawn(self, level: int) -> _Place:
        fork = self._decided(self.config.children[level])
        number = fork.num_siblings if fork else 0
        is_last = level + 1 == len(self.config.children)
        return _Place(fork, tuple(None if is_last else self._drawn(level + 1) for _ in range(number)))

    def _decided(self, wanted: float) -> Fork | None:
        """Draw the number of children, given its expected value; None = random termination ends the path."""
        whole, rest = int(wanted), wanted - int(wanted)
        is_more = bool(rest) and self._rng.random() < rest
        if not whole:
            return roulette(wanted) if is_more else None
        probability = (rest if is_more else 1 - rest) if rest else None
        return Fork(whole + is_more, "planned", probability=probability)
