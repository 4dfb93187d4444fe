"""Data sets on disk in the layouts of huggingface/datasets, written by pyarrow alone."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

Rows = Sequence[Mapping[str, Any]]


def questions(*texts: str) -> list[dict[str, Any]]:
    return [{"question": text, "answer": text.upper()} for text in texts]


def parquet(path: Path, rows: Rows, **types: pa.DataType) -> Path:
    """A Parquet file; `types` are those of columns that pyarrow would guess otherwise."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table(rows, **types), path)
    return path


def table(rows: Rows, **types: pa.DataType) -> pa.Table:
    names = list(dict.fromkeys(name for row in rows for name in row))
    return pa.table({name: pa.array([row.get(name) for row in rows], types.get(name)) for name in names})


def stream(path: Path, content: pa.Table, *, rows_a_batch: int | None = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, content.schema) as writer:
        writer.write_table(content, max_chunksize=rows_a_batch)
    return path


def save_to_disk(folder: Path, shards: Sequence[Rows], split: str | None = None) -> Path:
    """What `Dataset.save_to_disk` writes."""
    names = [f"data-{index:05d}-of-{len(shards):05d}.arrow" for index in range(len(shards))]
    for name, rows in zip(names, shards, strict=True):
        stream(folder / name, table(rows))
    state = {
        "_data_files": [{"filename": name} for name in names],
        "_fingerprint": "0" * 16,
        "_format_columns": None,
        "_format_kwargs": {},
        "_format_type": None,
        "_output_all_columns": False,
        "_split": split,
    }
    (folder / "state.json").write_text(json.dumps(state))
    (folder / "dataset_info.json").write_text(json.dumps({"citation": "", "description": "", "features": {}}))
    return folder


def save_dict_to_disk(folder: Path, splits: Mapping[str, Sequence[Rows]]) -> Path:
    """What `DatasetDict.save_to_disk` writes."""
    for split, shards in splits.items():
        save_to_disk(folder / split, shards, split)
    (folder / "dataset_dict.json").write_text(json.dumps({"splits": list(splits)}))
    return folder
