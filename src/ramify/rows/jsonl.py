"""JSONL: one row per line, UTF-8, in the given order: trees by problem, leaves in canonical order. Schema:
`docs/concepts/rows.md`.

Equal rows give equal bytes: fixed key order, shortest decimals, no wall-clock fields. It streams with one row in
memory.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from ramify.rows.files import json_line, write_lines
from ramify.rows.json_numbers import decimals_text, floats_text, ids_text
from ramify.rows.records import columns
from ramify.rows.row import Row


def lines(rows: Iterable[Row]) -> Iterator[bytes]:
    """One line per row, with the newline. Lone surrogates, which UTF-8 cannot hold, become `?`."""
    return (json_line(_fields(row)) for row in rows)


def write(rows: Iterable[Row], path: Path, *, gold: str | None = None, force: bool = False) -> int:
    """Write rows to `path` and return their number.

    - `gold`: public column of the gold answers; None = rows have none.
    - `force`: whether to replace what an earlier export made; anything else there raises `ExportError`.
    """
    return write_lines(map(_fields, rows), path, force=force)


def _fields(row: Row) -> dict[str, Any]:
    """The record of a row, with the text of its numbers."""
    return {
        **columns(row),
        "ids": ids_text(row.ids),
        "weights": floats_text(row.weights, "weights"),
        "advantages": floats_text(row.advantages, "advantages"),
        "logprobs": decimals_text(row.logprobs, "logprobs"),
    }
