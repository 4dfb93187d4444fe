"""One row of a data file: its place, its fault, and the columns to read."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ramify.core.errors import nearest
from ramify.tasks.data_columns import Columns


@dataclass(frozen=True, slots=True)
class RowPlace:
    """Where a row stands."""

    path: Path
    number: int
    """Of its line, or of its row in a file that has no lines; both from 1."""
    is_line: bool = True

    def __str__(self) -> str:
        return f"{self.path}:{self.number}" if self.is_line else f"{self.path} row {self.number}"

    def beside(self, other: "RowPlace") -> str:
        """This place in a sentence about `other`."""
        number = f"{'line' if self.is_line else 'row'} {self.number}"
        return number if self.path == other.path else f"{number} of {self.path}"


@dataclass(frozen=True, slots=True)
class RowFault:
    """What is wrong with one row."""

    place: RowPlace
    message: str

    def __str__(self) -> str:
        return f"{self.place}: {self.message}"


@dataclass(frozen=True, slots=True)
class WantedColumns:
    """What is read of each row. Columns that nobody wants are not read, where a file allows that."""

    named: Mapping[str, str]
    """Setting -> the column it names, exactly or by a dotted path."""
    has_others: bool
    """Whether every other column that JSON can hold is read too."""

    def heads(self) -> frozenset[str]:
        """Columns that those named are or may stand in."""
        return frozenset(name for column in self.named.values() for name in (column, column.partition(".")[0]))

    def missing(self, settings: Mapping[str, str], present: set[str]) -> str:
        """A sentence for each of `settings`, whose columns are not there."""
        return "; ".join(
            f"data.{setting} = {column!r}: the file has no such column; {nearest(column, present)}"
            for setting, column in settings.items()
        )


Row = tuple[RowPlace, Columns] | RowFault
