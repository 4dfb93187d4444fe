"""Corpus: the passages of a user's own file, JSONL (also gzipped) or Parquet, for a search index.

Owns reading and checking. Every fault names the file, the line (in Parquet: the row) and the column. Rows keep their
order and the file is never changed. Memory holds one batch of rows and about 30 bytes per id. Search-R1's published
layout is read: `contents` is the title, a newline and the text.
"""

import gzip
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import BufferedIOBase
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from ramify.core.errors import ConfigError, nearest
from ramify.tools.passages import Passage
from ramify.tools.seen_ids import SeenIds

OnBadRow = Literal["stop", "skip"]

LINES: Final = (".jsonl", ".ndjson")
SUFFIXES: Final = (*LINES, *(f"{suffix}.gz" for suffix in LINES), ".parquet")
CONTENTS: Final = "contents"
"""Search-R1's column: the first line is the title and the rest is the text."""
MAX_FAULTS_SHOWN: Final = 10
MAX_LINE_BYTES: Final = 16 << 20
"""Longest row of JSONL. A longer one is a bad row and is never held in memory as a whole."""
BATCH: Final = 1024
"""Rows of Parquet in memory at a time, in addition to their stored row group."""

_BOM = b"\xef\xbb\xbf"


class BadPassage(Exception):
    """What is wrong with one row. Private to this file: it becomes a line of the report."""


Row = Mapping[str, Any] | BadPassage


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """Which columns of a corpus hold what. A named column must exist in every row."""

    text: str | None = None
    """None = `text`, or Search-R1's `contents` if there is no `text`."""
    title: str | None = None
    """None = `title`, if a row has it."""
    uid: str | None = None
    """None = `id`, if a row has it."""

    def read_of(self, present: Sequence[str]) -> list[str]:
        """The columns to read from a file. Raises `BadPassage` if a needed one is missing."""
        for column in (self.text, self.title, self.uid):
            if column is not None and column not in present:
                raise BadPassage(f"there is no column {column!r}; {nearest(column, present)}")
        if self.text is None and "text" not in present and CONTENTS not in present:
            known = ", ".join(map(repr, present)) or "none"
            raise BadPassage(f"there is no column 'text' or {CONTENTS!r} among {known}; name the one that is the text")
        wanted = {self.text or "text", self.title or "title", self.uid or "id", CONTENTS}
        return [column for column in present if column in wanted]

    def passage(self, row: Mapping[str, Any]) -> Passage:
        """The passage of a row. Raises `BadPassage`."""
        self.read_of(tuple(row))
        uid = _uid(row, self.uid or "id", is_named=self.uid is not None)
        text_column = self.text or ("text" if "text" in row else CONTENTS)
        text = _text(row, text_column)
        if text_column == CONTENTS and self.text is None and self.title is None:
            title, _, text = text.partition("\n")
            return Passage(text, title, uid)
        return Passage(text, _title(row, self.title or "title"), uid)


class Corpus:
    """A file of passages, with counts of what was read. Raises `ConfigError` if the file is missing or has another
    format."""

    def __init__(
        self,
        path: str | Path,
        columns: Columns = Columns(),
        *,
        on_bad_row: OnBadRow = "stop",
    ) -> None:
        self.path = Path(path)
        if not self.path.name.lower().endswith(SUFFIXES):
            raise ConfigError(f"{self.path}: a corpus ends in {', '.join(SUFFIXES)}, not {self.path.suffix!r}")
        if not self.path.is_file():
            raise ConfigError(f"{self.path}: there is no such file")
        self._columns = columns
        self._on_bad_row: OnBadRow = on_bad_row
        self._seen = SeenIds()
        self.num_bad = 0
        """Bad rows so far."""
        self.faults: list[str] = []
        """What is wrong with the first bad rows."""
        self.share_read = 0.0
        """How much of the file was read, from 0 to 1."""

    def passages(self) -> Iterator[Passage]:
        """Every good row as a passage, in the file's order. Call this once.

        Raises `ConfigError` if the file cannot be read, no row is good or, unless bad rows are skipped, a row is bad.
        The error for bad rows comes at the end of the file with all faults, or as soon as there are more than ten.
        """
        num_good = 0
        for number, row in self._rows():
            try:
                passage = self._passage(row, number)
            except BadPassage as bad:
                self._note(number, bad)
                continue
            if not self.num_bad or self._on_bad_row == "skip":
                num_good += 1
                yield passage
        self.share_read = 1.0
        if self.num_bad and self._on_bad_row == "stop":
            raise ConfigError(self.report())
        if not num_good:
            raise ConfigError(f"{self.path}: no row holds a passage{f'; {self.report()}' if self.num_bad else ''}")

    def report(self) -> str:
        """A line for each of the first bad rows, and how many more there are."""
        more = self.num_bad - len(self.faults)
        return "\n".join([*self.faults, *([f"… and {more} more bad rows"] if more else [])])

    def _passage(self, row: Row, number: int) -> Passage:
        if isinstance(row, BadPassage):
            raise row
        passage = self._columns.passage(row)
        if passage.uid and (first := self._seen.first_line(passage.uid, number)) != number:
            raise BadPassage(f"id {passage.uid!r:.80} was used in {self._unit} {first}; an id names one passage")
        return passage

    def _note(self, number: int, bad: BadPassage) -> None:
        """Keep a fault. Raises `ConfigError` when there are more than are shown and bad rows stop the build."""
        self.num_bad += 1
        if len(self.faults) < MAX_FAULTS_SHOWN:
            place = f"{self.path}: row {number}" if self._is_parquet else f"{self.path}:{number}"
            self.faults.append(f"{place}: {bad}")
        elif self._on_bad_row == "stop":
            raise ConfigError("\n".join([*self.faults, "… and more bad rows; the rest was not read"]))

    @property
    def _is_parquet(self) -> bool:
        return self.path.suffix.lower() == ".parquet"

    @property
    def _unit(self) -> str:
        return "row" if self._is_parquet else "line"

    # -- files --------------------------------------------------------------------------------------------------------

    def _rows(self) -> Iterator[tuple[int, Row]]:
        """(number from 1, row) of every row."""
        return self._parquet_rows() if self._is_parquet else self._json_rows()

    def _json_rows(self) -> Iterator[tuple[int, Row]]:
        try:
            size = max(1, self.path.stat().st_size)
            with self.path.open("rb") as file:
                is_packed = self.path.suffix.lower() == ".gz"
                lines: BufferedIOBase = gzip.GzipFile(fileobj=file) if is_packed else file
                for number, line in enumerate(_lines(lines), start=1):
                    self.share_read = file.tell() / size
                    if isinstance(line, BadPassage):
                        yield number, line
                    elif line := line.removeprefix(_BOM if number == 1 else b"").strip():
                        yield number, _json_row(line)
        except (OSError, EOFError, zlib.error) as error:
            raise ConfigError(f"{self.path} cannot be read: {error}") from error

    def _parquet_rows(self) -> Iterator[tuple[int, Row]]:
        try:
            import pyarrow
            import pyarrow.parquet
        except ImportError as error:
            raise ConfigError("Parquet needs pyarrow: pip install 'ramify[parquet]'") from error
        try:
            with pyarrow.parquet.ParquetFile(self.path) as file:
                columns = self._columns.read_of(file.schema_arrow.names)
                number = 0
                for batch in file.iter_batches(batch_size=BATCH, columns=columns):
                    yield from enumerate(_arrow_rows(batch), start=number + 1)
                    number += batch.num_rows
                    self.share_read = number / file.metadata.num_rows
        except (BadPassage, OSError, pyarrow.ArrowException) as error:
            raise ConfigError(f"{self.path} cannot be read: {error}") from error


def _lines(file: BufferedIOBase) -> Iterator[bytes | BadPassage]:
    """Every line of a file, or the fault of a line that is too long. Only a newline ends a line."""
    while line := file.readline(MAX_LINE_BYTES + 1):
        if len(line) <= MAX_LINE_BYTES:
            yield line
            continue
        while line and not line.endswith(b"\n"):
            line = file.readline(MAX_LINE_BYTES)
        yield BadPassage(f"the line is longer than {MAX_LINE_BYTES} bytes")


def _json_row(line: bytes) -> Row:
    try:
        return msgspec.json.decode(line.decode("utf-8"), type=dict[str, Any])
    except UnicodeDecodeError as error:
        return BadPassage(f"this is no UTF-8: {error.reason} at byte {error.start} of the line")
    except RecursionError:
        return BadPassage("this is nested too deeply")
    except (msgspec.DecodeError, UnicodeEncodeError) as error:
        hint = "; a byte order mark stands before it" if line.startswith(_BOM) else ""
        return BadPassage(f"this is no JSON object: {error}{hint}")


def _arrow_rows(batch: Any) -> Iterator[Row]:
    """The rows of a batch. If Arrow fails on one row, such as a text that is not UTF-8, it fails on the whole batch;
    then each row is read separately."""
    try:
        yield from batch.to_pylist()
    except (ValueError, OverflowError):
        for row in range(batch.num_rows):
            try:
                yield {name: batch.column(name)[row].as_py() for name in batch.schema.names}
            except UnicodeDecodeError as error:
                yield BadPassage(f"this is no UTF-8: {error.reason} at byte {error.start} of a text")
            except (ValueError, OverflowError) as error:
                yield BadPassage(f"this cannot be read: {error}")


def _text(row: Mapping[str, Any], column: str) -> str:
    text = row[column]
    if not isinstance(text, str) or not text.strip():
        raise BadPassage(f"column {column!r} holds no text: {text!r:.80}")
    return text


def _title(row: Mapping[str, Any], column: str) -> str:
    """'' if a row has no title: a passage needs none."""
    title = row.get(column)
    if title is not None and not isinstance(title, str):
        raise BadPassage(f"column {column!r} holds no title: {title!r:.80}")
    return title or ""


def _uid(row: Mapping[str, Any], column: str, *, is_named: bool) -> str:
    uid = row.get(column)
    if uid is None and not is_named:
        return ""
    if isinstance(uid, bool) or not isinstance(uid, str | int) or uid == "":
        raise BadPassage(f"column {column!r} holds no id: {uid!r:.80}")
    return str(uid)
