"""Replay: every outcome of a random procedure, by replaying each list of draws, depth first.

The procedure takes *all* its randomness from `draw(law) -> index`. The probability of an outcome is the product of the
probabilities of its draws, and those of all outcomes sum to 1. What was drawn before decides by which law is drawn
next; a procedure that does otherwise has randomness of its own, and is refused.

Children of one fork that grow by one law are exchangeable: trees that differ in their order alone have one probability
and, for a credit that does not read the order, one gradient. `is_sorted=True` grows one tree of each such set and
counts it as often as it has orders.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from itertools import pairwise
from typing import Protocol, TypeVar

from ramify.core.errors import ContractError

T = TypeVar("T")


class Draw(Protocol):
    """Takes one draw by a law."""

    def __call__(self, law: Sequence[Fraction], /) -> int: ...


class OwnRandomness(ContractError):
    """A procedure drew by other means than `draw`."""


class Replay:
    """One list of draws: replayed as far as it goes, then continued with the first possible choices."""

    def __init__(
        self, chosen: Sequence[int], *, known: Sequence[Sequence[Fraction]] = (), is_sorted: bool = False
    ) -> None:
        """`known`: the laws by which `chosen` were drawn when they were drawn first."""
        self.chosen = list(chosen)
        self.laws: list[Sequence[Fraction]] = []
        self.num_orders = 1
        """Of the children of all forks: how many trees this one stands for."""
        self._known = known
        self._is_sorted = is_sorted
        self._elders: list[tuple[int, int]] = []
        """Of each child that is growing: where the draws of the child before it begin, and where its own do."""

    def __call__(self, law: Sequence[Fraction], /) -> int:
        """The index of this draw. Raises `OwnRandomness` where the law is not that of an earlier replay."""
        place = len(self.laws)
        if place < len(self._known) and law is not self._known[place] and tuple(law) != tuple(self._known[place]):
            raise self.strayed()
        self.laws.append(law)
        if place == len(self.chosen):
            self.chosen.append(_possible(law, self._least(place)))
        return self.chosen[place]

    def forked(self, children: Sequence[Callable[[], None]]) -> None:
        """Grow these children, which draw by one law, each for itself."""
        starts: list[int] = []
        for grow in children:
            starts.append(len(self.laws))
            if self._is_sorted and len(starts) > 1:
                self._elders.append((starts[-2], starts[-1]))
                grow()
                self._elders.pop()
            else:
                grow()
        if self._is_sorted:
            drawn = Counter(tuple(self.chosen[a:b]) for a, b in pairwise([*starts, len(self.laws)]))
            self.num_orders *= math.factorial(len(starts)) // math.prod(map(math.factorial, drawn.values()))

    @property
    def probability(self) -> Fraction:
        """Of this outcome in any of its orders."""
        laws = [law[i] for i, law in zip(self.chosen, self.laws, strict=True)]
        numerator = math.prod((p.numerator for p in laws), start=self.num_orders)
        return Fraction(numerator, math.prod(p.denominator for p in laws))

    def following(self) -> list[int] | None:
        """The next list of draws, depth first; None = this was the last. Raises `OwnRandomness` if not all draws that
        were made before were made again."""
        if len(self.laws) < len(self.chosen):
            raise self.strayed()
        chosen = list(self.chosen)
        while chosen:
            law = self.laws[len(chosen) - 1]
            chosen[-1] = _possible(law, chosen[-1] + 1)
            if chosen[-1] < len(law):
                return chosen
            chosen.pop()
        return None

    def strayed(self) -> OwnRandomness:
        return OwnRandomness(
            f"after the same {len(self.laws)} draws it went another way than before: it drew randomness of its own; "
            "draw only from the generator handed in"
        )

    def _least(self, place: int) -> int:
        """The first choice by which no child's draws stand before those of the child before it."""
        ties = ((elder, own) for elder, own in self._elders if self._is_tied(elder, own, place - own))
        return max((self.chosen[elder + place - own] for elder, own in ties), default=0)

    def _is_tied(self, elder: int, own: int, number: int) -> bool:
        return self.chosen[elder : elder + number] == self.chosen[own : own + number]


def outcomes(grow: Callable[[Replay], T], *, is_sorted: bool = False) -> Iterator[tuple[Fraction, T]]:
    """Every outcome of `grow`, with its probability; `is_sorted`: one for all orders of the children of a fork."""
    chosen: list[int] | None = []
    known: Sequence[Sequence[Fraction]] = ()
    while chosen is not None:
        replay = Replay(chosen, known=known[: len(chosen)], is_sorted=is_sorted)
        outcome = grow(replay)
        yield replay.probability, outcome
        chosen, known = replay.following(), replay.laws


def _possible(law: Sequence[Fraction], index: int) -> int:
    """The first index from `index` on with a probability above 0; the law's length if there is none."""
    while index < len(law) and not law[index]:
        index += 1
    return index
