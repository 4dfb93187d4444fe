"""Tensors: arrays in one file, and everything that is no number in JSON lines beside it.

The files are `batch.safetensors` or `batch.npz`, depending on the suffix, and `batch.jsonl` with one line per row.
Nothing is pickled.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, ParamSpec

import numpy as np
from safetensors.numpy import save

from ramify.core.errors import ExportError
from ramify.rows.files import refuse_files, whole, write_lines
from ramify.rows.records import plain
from ramify.rows.row import Row

CreditBy = Literal["tree", "trainer"]
"""Who credits the tokens. tree: the rows' own per-token advantages are exported. trainer: only rewards are exported,
and the trainer compares those of a group itself."""
P = ParamSpec("P")
SUFFIXES: Final = (".npz", ".safetensors")


def refuse_several_scales(rows: Sequence[Row]) -> None:
    """Raise `ExportError` for rows of several normalisers: this format holds no divisor, so their advantages would be
    on several scales. Trees that were divided by their own number of leaves may pass: a run says so on its rows."""
    found = sorted({row.normaliser for row in rows if row.normaliser_of == "run"})
    if len(found) > 1:
        listed = ", ".join(f"{value:g}" for value in found[:8])
        raise ExportError(
            f"rows of the normalisers {listed} are on several scales, and this format holds no divisor; export all of "
            "them with one: --normaliser N, or rows(normaliser=N)"
        )


def columns_path(path: Path) -> Path:
    """The file of JSON lines beside the tensors at `path`."""
    return path.with_suffix(".jsonl")


def writes_columns(write: Callable[P, int]) -> Callable[P, int]:
    """Say that an exporter makes `columns_path` as well, so that `files_of` names it. Mutates `write`."""
    write.__dict__["beside"] = lambda path: [columns_path(path)]
    return write


def write_tensors(
    tensors: Mapping[str, Any], columns: Mapping[str, Sequence[Any]], path: Path, *, force: bool = False
) -> None:
    """Write `tensors` to `path`, and `columns` to the same name with `.jsonl`. Each column has one value per row of the
    batch."""
    if path.suffix not in SUFFIXES:
        raise ExportError(f"{path.name!r} cannot name a file of tensors; it must end in {' or '.join(SUFFIXES)}")
    records = (dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True))
    refuse_files([path, columns_path(path)], force=force)
    write_lines(records, columns_path(path), force=force)
    with whole(path, force=force) as part, part.open("wb") as stream:
        if path.suffix == ".npz":
            np.savez(stream, **tensors)
        else:
            stream.write(save({name: np.ascontiguousarray(array) for name, array in tensors.items()}))


def public_columns(rows: Sequence[Row], taken: Sequence[str] = ()) -> dict[str, list[Any]]:
    """The rows' public columns: column -> value of each row; None if its problem has no such column.

    Raises `ExportError` for a column that is no JSON data, or that has the name of one of the exporter's own columns,
    `taken`.
    """
    names = sorted({name for row in rows for name in row.public})
    if clash := [name for name in names if name in taken]:
        raise ExportError(
            f"public columns {clash} are called like the exporter's own; rename them, or leave them out by data.public"
        )
    return {name: [plain(row.public.get(name), f"public.{name}") for row in rows] for name in names}
