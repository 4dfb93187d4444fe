"""Rows of data files, one at a time, each with its place: `data.jsonl:3` or `data.parquet row 3`.

A row that cannot be read is a fault with its place, and reading continues after it. A file that cannot be read is a
`ConfigError` that names it. Memory holds one line of JSONL and CSV, and one batch of Parquet and Arrow.
"""

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from ramify.core.errors import ConfigError
from ramify.tasks.data_arrow import arrow_rows, parquet_rows
from ramify.tasks.data_folder import KINDS
from ramify.tasks.data_row import Row, RowFault, RowPlace, WantedColumns, refuse_same_names

BOM = b"\xef\xbb\xbf"


def rows(path: Path, wanted: WantedColumns) -> Iterator[Row]:
    """All rows of a file in order. Raises `ConfigError`."""
    match KINDS[path.suffix.lower()]:
        case "JSONL":
            return _json_rows(path)
        case "CSV":
            return _csv_rows(path)
        case kind:
            return parquet_rows(path, wanted) if kind == "Parquet" else arrow_rows(path, wanted)


def _json_rows(path: Path) -> Iterator[Row]:
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if line := line.removeprefix(BOM if number == 1 else b"").strip():
                    yield _json_row(line, RowPlace(path, number))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error


def _json_row(line: bytes, place: RowPlace) -> Row:
    try:
        return place, msgspec.json.decode(line.decode(), type=dict[str, Any])
    except UnicodeDecodeError as error:
        return RowFault(place, f"the line is not UTF-8: {error.reason} at byte {error.start}; save the file as UTF-8")
    except RecursionError:
        return RowFault(place, "the line is nested too deeply to be read")
    except (msgspec.DecodeError, UnicodeEncodeError) as error:
        return RowFault(place, f"the line is not a JSON object: {error}")


def _csv_rows(path: Path) -> Iterator[Row]:
    header: list[str] = []
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, strict=True)
            try:
                for cells in reader:
                    place = RowPlace(path, reader.line_num)
                    if not any(cell.strip() for cell in cells):
                        continue
                    if not header:
                        refuse_same_names(place, cells)
                        header = cells
                    elif len(cells) != len(header):
                        yield RowFault(place, f"the row has {len(cells)} cells and the header {len(header)} columns")
                    else:
                        yield place, dict(zip(header, cells, strict=True))
            except csv.Error as error:
                yield RowFault(RowPlace(path, reader.line_num), f"the rest of the file is not CSV: {error}")
    except UnicodeDecodeError as error:
        raise ConfigError(_no_utf8(path)) from error
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error


def _no_utf8(path: Path) -> str:
    """The line at which a file stops being UTF-8. The decoder of an open file only tells the position in its buffer."""
    content = path.read_bytes()
    try:
        content.decode()
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        return f"{path}:{line}: the line is not UTF-8: {error.reason} at byte {error.start}; save the file as UTF-8"
    return f"{path}: the file was not UTF-8 when it was read and has changed since; try again"
