"""Draws: the only randomness a strategy has, and the few ways it is used.

Two finite draws, so that a test can feed them from a list and an exact check can enumerate them. Every strategy draws
at ask, in a documented order, through this interface and nothing else.
"""

from collections.abc import Sequence
from typing import Protocol, TypeVar

T = TypeVar("T")


class Draws(Protocol):
    """Source of randomness; a `numpy.random.Generator` is one."""

    def random(self) -> float:
        """Uniform on [0, 1)."""
        ...

    def integers(self, low: int, /) -> int:
        """Uniform on 0 .. low - 1."""
        ...


def without_replacement(items: Sequence[T], k: int, rng: Draws) -> list[T]:
    """`min(k, len(items))` different items in the order drawn; one integer each (a partial Fisher-Yates shuffle)."""
    pool = list(items)
    k = min(k, len(pool))
    for i in range(k):
        j = i + int(rng.integers(len(pool) - i))
        pool[i], pool[j] = pool[j], pool[i]
    return pool[:k]


def with_replacement(items: Sequence[T], k: int, rng: Draws) -> list[T]:
    """`k` items, repeats possible; none if there are no items."""
    return [items[int(rng.integers(len(items)))] for _ in range(k if items else 0)]
