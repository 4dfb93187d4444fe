"""JSONL: one row a line, UTF-8, in the order given: trees by problem, leaves canonical. `docs/rows.md` is the schema.

Equal rows give equal bytes: fixed key order, shortest decimals, no wall-clock fields. Streams: one row in memory.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

from ramify.rows.files import json_line, write_lines
from ramify.rows.records import record
from ramify.rows.row import Row


def lines(rows: Iterable[Row]) -> Iterator[bytes]:
    """One line a row, newline included; what no UTF-8 can say (lone surrogates) becomes `?`."""
    return (json_line(record(row)) for row in rows)


def write(rows: Iterable[Row], path: Path) -> int:
    """Write rows to `path`, which is replaced when all are written, and return their number."""
    return write_lines((record(row) for row in rows), path)
