"""Parquet: the columns of `docs/concepts/rows.md`, one row group per 1024 rows. Needs pyarrow, an extra.

`parts` is a map. `public` and a span's `call` are JSON text, because problems and tools decide what they hold.
"""

import json
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ramify.core.errors import ExportError
from ramify.rows.files import whole
from ramify.rows.records import columns
from ramify.rows.row import Row

ROWS_A_GROUP: Final = 1024


def write(rows: Iterable[Row], path: Path, *, gold: str | None = None, force: bool = False) -> int:
    """Write rows to `path` and return their number.

    - `gold`: public column of the gold answers; None = rows have none.
    - `force`: whether to replace what an earlier export made; anything else there raises `ExportError`.
    """
    arrow, parquet = _pyarrow()
    schema = _schema(arrow)
    number = 0
    remaining = iter(rows)
    with whole(path, force=force) as part, parquet.ParquetWriter(part, schema) as writer:
        while group := [_fields(row) for row in islice(remaining, ROWS_A_GROUP)]:
            table = {name: [fields[name] for fields in group] for name in schema.names}
            table |= {name: _lists(arrow, table[name]) for name in ("ids", "weights", "advantages", "logprobs")}
            writer.write_table(arrow.table(table, schema=schema))
            number += len(group)
    return number


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise ExportError("Parquet needs pyarrow: pip install 'ramify[parquet]'") from error
    return pyarrow, pyarrow.parquet


def _lists(arrow: Any, arrays: Sequence[npt.NDArray[Any]]) -> Any:
    """A column of lists: an array a row. NaN becomes null."""
    values = np.concatenate(arrays)
    offsets = np.cumsum([0, *map(len, arrays)], dtype=np.int32)
    return arrow.ListArray.from_arrays(offsets, arrow.array(values, from_pandas=True))


def _fields(row: Row) -> dict[str, Any]:
    fields = columns(row)
    fields["parts"] = list(fields["parts"].items())
    fields["public"] = _text(fields["public"])
    for span in fields["spans"]:
        span["call"] = None if span["call"] is None else _text(span["call"])
    return fields


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "replace").decode()


def _schema(arrow: Any) -> Any:
    span = arrow.struct(
        [
            ("num_tokens", arrow.int32()),
            ("node", arrow.int32()),
            ("origin", arrow.string()),
            ("version", arrow.int64()),
            ("engine", arrow.string()),
            ("temperature", arrow.float64()),
            ("top_p", arrow.float64()),
            ("top_k", arrow.int32()),
            ("logprobs", arrow.string()),
            ("step_entropy", arrow.float64()),
            ("positive", arrow.float64()),
            ("share", arrow.float64()),
            ("call", arrow.string()),
        ]
    )
    return arrow.schema(
        [
            ("schema_version", arrow.int32()),
            ("uid", arrow.string()),
            ("tree_seed", arrow.uint64()),
            ("leaf", arrow.int32()),
            ("split", arrow.string()),
            ("stop", arrow.string()),
            ("is_truncated", arrow.bool_()),
            ("reward", arrow.float64()),
            ("parts", arrow.map_(arrow.string(), arrow.float64())),
            ("is_oracle", arrow.bool_()),
            ("credit", arrow.string()),
            ("is_unbiased", arrow.bool_()),
            ("reasons", arrow.list_(arrow.string())),
            ("policy", arrow.string()),
            ("normaliser", arrow.float64()),
            ("num_prompt", arrow.int32()),
            ("ids", arrow.list_(arrow.int32())),
            ("weights", arrow.list_(arrow.float64())),
            ("advantages", arrow.list_(arrow.float64())),
            ("logprobs", arrow.list_(arrow.float32())),
            ("spans", arrow.list_(span)),
            ("codec", arrow.struct([("name", arrow.string()), ("sha256", arrow.string())])),
            ("public", arrow.string()),
        ]
    )
