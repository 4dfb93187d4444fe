"""InFlight: what a strategy remembers of each command it has asked for.

The runner numbers a strategy's commands in the order asked, so a strategy that books every command here as it asks
knows each outcome's command without looking at the tree.
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
        """Remember a note for each command of this ask; returns the commands."""
        for command_id, _, note in zip(count(self._num_asked), commands, notes, strict=False):
            self._notes[command_id] = note
        self._num_asked += len(commands)
        return commands

    def take(self, outcome: Outcome) -> T:
        """The note of the command that ended, which is no longer in flight."""
        return self._notes.pop(outcome.command_id)
