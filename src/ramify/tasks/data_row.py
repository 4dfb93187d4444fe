"""One row of a data file: its place, its fault, and the columns to read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ramify.core.errors import ConfigError, nearest
from ramify.tasks.data_columns import Columns


@dataclass(frozen=True, slots=True)
class RowPlace:
    """The place of a row."""

    path: Path
    number: int
    """Number of its line, or of its row in a file without lines; both count from 1."""
    is_line: bool = True

    def __str__(self) -> str:
        return f"{self.path}:{self.number}" if self.is_line else f"{self.path} row {self.number}"

    def beside(self, other: "RowPlace") -> str:
        """This place in a sentence about `other`."""
        number = f"{'line' if self.is_line else 'row'} {self.number}"
        return number if self.path == other.path else f"{number} of {self.path}"


@dataclass(frozen=True, slots=True)
class RowFault:
    """The fault of one row."""

    place: RowPlace
    message: str

    def __str__(self) -> str:
        return f"{self.place}: {self.message}"


def refuse_same_names(where: RowPlace | Path, names: Sequence[str]) -> None:
    """Raise `ConfigError` if two of a file's columns have one name: a column is found by its name."""
    twice = [name for name in dict.fromkeys(names) if names.count(name) > 1]
    if twice:
        raise ConfigError(
            f"{where}: several columns have the name {', '.join(map(repr, twice)):.80}; rename all but one"
        )


@dataclass(frozen=True, slots=True)
class WantedColumns:
    """The columns to read from each row. Other columns are not read if the file format allows that."""

    named: Mapping[str, str]
    """Setting -> the column it names, exactly or by a dotted path."""
    has_others: bool
    """Whether every other column that JSON can hold is read too."""

    def heads(self) -> frozenset[str]:
        """Top-level columns that the named ones are, or may be inside."""
        return frozenset(name for column in self.named.values() for name in (column, column.partition(".")[0]))

    def missing(self, settings: Mapping[str, str], present: set[str]) -> str:
        """One sentence for each of `settings`, whose columns are missing."""
        return "; ".join(
            f"data.{setting} = {column!r}: the file has no such column; {nearest(column, present)}"
            for setting, column in settings.items()
        )


Row = tuple[RowPlace, Columns] | RowFault
