"""Followed tree: what is kept of each tree of a run that is followed: the places of its lines, not the tree itself."""

from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from ramify.core.errors import StoreError
from ramify.store.framing import UNREADABLE
from ramify.store.tail import TailedLine
from ramify.view.tree_row import TreeRow
from ramify.view.tree_values import Value

SPENT_COLUMNS: Final[Mapping[str, str]] = {
    "tokens": "decode",
    "tools": "tool_calls",
    "context": "prefill_uncached",
    "cached": "prefill_cached",
}
"""Column of `tree_values` -> what it is called in the record that closes a tree."""


class OpenedLine(msgspec.Struct, frozen=True):
    """The part of the record that opens a tree which is shown before the tree is replayed."""

    uid: str
    question: str
    split: str = ""


class ClosedLine(msgspec.Struct, frozen=True):
    """The part of the record that closes a tree which is shown before the tree is replayed."""

    reason: str
    num_leaves: int
    spent: dict[str, dict[str, int]] = {}

    def total(self, name: str) -> int | None:
        """What all roles together spent; None = it was not recorded."""
        return sum(counters.get(name, 0) for counters in self.spent.values()) if self.spent else None


class LinePlace(NamedTuple):
    """Where a line stands in a journal."""

    file: int
    offset: int
    length: int


_OPENED = msgspec.json.Decoder(OpenedLine)
_CLOSED = msgspec.json.Decoder(ClosedLine)


def opened_line(line: TailedLine) -> OpenedLine:
    """Raises `StoreError` on bytes that are no such record."""
    try:
        return _OPENED.decode(line.body)
    except UNREADABLE as error:
        raise StoreError(f"tree {line.tree}: the record that opens it cannot be read: {error}") from error


def closed_line(line: TailedLine) -> ClosedLine:
    """Raises `StoreError` on bytes that are no such record."""
    try:
        return _CLOSED.decode(line.body)
    except UNREADABLE as error:
        raise StoreError(f"tree {line.tree}: the record that closes it cannot be read: {error}") from error


@dataclass(slots=True)
class FollowedTree:
    """One tree of a run that is followed. Only `FollowedRun` mutates it."""

    number: int
    folder: Path
    """The journal that holds it."""
    opened: OpenedLine
    revision: int
    """Revision of the run in which it changed last."""
    closed: ClosedLine | None = None
    row: TreeRow | None = None
    """None = it is open, or not computed yet, or its records cannot be replayed."""
    num_steps: int = 0
    """Steps that are complete, those included that are not on the tree yet."""
    fault: str = ""
    """Why its records cannot be replayed."""
    _places: "array[int]" = field(default_factory=lambda: array("q"))

    @property
    def is_due(self) -> bool:
        """Whether its row can be computed and is not yet."""
        return self.closed is not None and self.row is None and not self.fault

    def add(self, file: int, offset: int, length: int) -> None:
        """Note where the next line stands that its replay needs."""
        self._places.extend((file, offset, length))

    def places(self) -> Iterator[LinePlace]:
        """Where the lines stand that its replay needs, in order."""
        each = iter(self._places)
        return (LinePlace(*place) for place in zip(each, each, each, strict=True))

    def values(self) -> dict[str, Value]:
        """What is known of the columns of `tree_values`: all of them, or those that two lines tell."""
        if self.row is not None:
            return dict(self.row.values)
        known: dict[str, Value] = {"tree": self.number, "question": self.opened.question, "uid": self.opened.uid}
        if self.closed is None:
            return known
        spent = {column: self.closed.total(name) for column, name in SPENT_COLUMNS.items()}
        return {**known, "leaves": self.closed.num_leaves, **spent}
