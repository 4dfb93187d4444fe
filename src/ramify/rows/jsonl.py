"""JSONL: one row a line, UTF-8, in the order given: trees by problem, leaves canonical. `docs/rows.md` is the schema.

Equal rows give equal bytes: fixed key order, shortest decimals, no wall-clock fields. Streams: one row in memory.
"""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from ramify.rows.files import whole
from ramify.rows.records import record
from ramify.rows.row import Row


def lines(rows: Iterable[Row]) -> Iterator[bytes]:
    """One line a row, newline included; what no UTF-8 can say (lone surrogates) becomes `?`."""
    for row in rows:
        text = json.dumps(record(row), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        yield text.encode("utf-8", errors="replace") + b"\n"


def write(rows: Iterable[Row], path: Path) -> int:
    """Write rows to `path`, which is replaced when all are written, and return their number."""
    number = 0
    with whole(path) as part, part.open("wb") as stream:
        for line in lines(rows):
            stream.write(line)
            number += 1
    return number
