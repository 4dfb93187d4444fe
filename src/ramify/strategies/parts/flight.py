"""InFlight: a strategy's note for each command it has asked for.

The runner numbers the commands of a strategy in the order asked. A strategy that books every command here as it asks
can find the command of an outcome without looking at the tree.
"""

from collections.abc import Iterable, Sequence
from itertools import count
from typing import Generic, TypeVar

from ramify.core.command import Command, Outcome

T = TypeVar("T")
C = TypeVar("C", bound=Command)


class InFlight(Generic[T]):
    """A note for each command in flight, by command id. Mutated by `book` and `take`."""

    def __init__(self) -> None:
        self._notes: dict[int, T] = {}
        self._num_asked = 0

    def __len__(self) -> int:
        return len(self._notes)

    def book(self, commands: Sequence[C], notes: Iterable[T]) -> Sequence[C]:
        """Store a note for each command of this ask; returns the commands."""
        for command_id, _, note in zip(count(self._num_asked), commands, notes, strict=False):
            self._notes[command_id] = note
        self._num_asked += len(commands)
        return commands

    def take(self, outcome: Outcome) -> T:
        """Remove and return the note of the command that ended."""
        return self._notes.pop(outcome.command_id)
