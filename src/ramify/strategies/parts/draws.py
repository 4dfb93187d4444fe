"""Draws: the only source of randomness of a strategy, and the few ways to use it.

It has two finite draws, so a test can supply them from a list and an exact check can enumerate them. Every strategy
draws at ask, in a documented order, only through this interface.
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
    """`min(k, len(items))` different items in the order drawn; one integer for each (a partial Fisher-Yates
    shuffle)."""
    pool = list(items)
    k = min(k, len(pool))
    for i in range(k):
        j = i + int(rng.integers(len(pool) - i))
        pool[i], pool[j] = pool[j], pool[i]
    return pool[:k]


def with_replacement(items: Sequence[T], k: int, rng: Draws) -> list[T]:
    """`k` items, repeats possible; empty if there are no items."""
    return [items[int(rng.integers(len(items)))] for _ in range(k if items else 0)]
