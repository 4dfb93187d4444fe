"""Body budget: bytes of the answers that are being read, of all requests of this process together. No clock, no I/O.

Each answer has a limit of its own. A server that answers hundreds of requests by bodies without end could still fill
the memory. So while all bodies together are over the budget, one that is longer than an equal share of it is given up.
A short answer is never given up because others are long. Invariant: all bodies have at most twice `max_bytes`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

MAX_READING_BYTES: Final = 256 << 20


@dataclass(slots=True)
class HeldBody:
    """One body that is being read."""

    budget: "BodyBudget"
    num_bytes: int = 0

    def grow(self, num_bytes: int) -> None:
        """Count what has arrived."""
        self.num_bytes += num_bytes
        self.budget.num_bytes += num_bytes

    @property
    def is_over(self) -> bool:
        """Whether this body must be given up."""
        budget = self.budget
        return budget.num_bytes > budget.max_bytes and self.num_bytes > budget.max_bytes // max(1, budget.num_bodies)


class BodyBudget:
    """Counts the bodies that are being read."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.num_bytes = 0
        self.num_bodies = 0

    @contextmanager
    def reading(self) -> Iterator[HeldBody]:
        """A body that is held while this lasts."""
        held = HeldBody(self)
        self.num_bodies += 1
        try:
            yield held
        finally:
            self.num_bodies -= 1
            self.num_bytes -= held.num_bytes


READING: Final = BodyBudget(MAX_READING_BYTES)
"""That of this process. It is used in one thread; a second event loop in another thread is counted along."""
