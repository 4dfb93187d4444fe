"""Every field of a row reaches every export of rows, or stands here with the reason why it does not.

Each field is changed alone and the export is written again: the column that is named must change, and nothing may
change where no column is named. A new field of `Row`, or a new export, fails until it has a place in these tables.
"""

import json
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from tests.credit.trees import SOURCE, bare, end, fork, step

from ramify import plugins
from ramify.core.codec import ByteCodec
from ramify.core.segment import ToolCall
from ramify.core.tree import ROOT
from ramify.rows import Row, RowSpan, rows_of
from ramify.rows.records import record

FIELDS: Final = {field.name for field in fields(Row)}
OF_TREES: Final = {"preference", "sft"}
"""Exports that are made of trees: no row takes part."""

IN_ABOUT: Final = {
    "tree_seed", "split", "leaf", "stop", "reward", "parts", "is_oracle", "credit", "reasons", "policy", "normaliser",
}  # fmt: skip
"""What `records.about` says of a row."""
IN_RECORD: Final = {
    **{name: name for name in IN_ABOUT},
    **{name: name for name in ("uid", "ids", "weights", "advantages", "logprobs", "spans", "public")},
    "codec": "codec.name",
    "codec_sha256": "codec.sha256",
}
BESIDE: Final = {name: f"ramify.{name}" for name in IN_ABOUT}
IN_ARRAYS: Final = {
    "uid": "uids", "ids": "input_ids", "weights": "loss_weights", "advantages": "advantages",
    "logprobs": "old_logprobs", "spans": "response_mask", "reward": "rewards", "normaliser": "normaliser",
}  # fmt: skip
COLUMNS: Final[Mapping[str, Mapping[str, str]]] = {
    "record": IN_RECORD,
    "jsonl": IN_RECORD,
    "parquet": IN_RECORD,
    "arrays": IN_ARRAYS,
    "search_r1": {
        **BESIDE, "uid": "uid", "ids": "input_ids", "weights": "info_mask", "spans": "meta_info.turns_stats",
        "public": "data_source",
    },
    "verl": {
        **BESIDE, "uid": "uid", "ids": "input_ids", "weights": "response_mask", "advantages": "rm_scores",
        "logprobs": "rollout_log_probs", "spans": "__num_turns__", "public": "data_source",
    },
    "verifiers": {
        **dict.fromkeys(IN_ABOUT, "info.ramify"),
        **dict.fromkeys(("ids", "weights", "advantages", "logprobs", "spans"), "nodes"),
        "uid": "task.key", "public": "task.data.public",
    },
    "slime": {
        **{name: f"metadata.ramify.{name}" for name in (*IN_ABOUT, "uid")}, "ids": "tokens", "weights": "loss_mask",
        "advantages": "train_metadata.advantages", "logprobs": "rollout_log_probs", "spans": "weight_versions",
        "public": "metadata.data_source",
    },
    "slime_train": {
        "ids": "tokens", "weights": "loss_masks", "advantages": "rewards", "logprobs": "rollout_log_probs",
        "spans": "round_number", "reward": "raw_reward", "stop": "truncated", "public": "source_names",
    },
}  # fmt: skip
"""Export -> field -> the column that carries it."""

LEAF_ID: Final = "not canonical: equal trees would give different files"
ENTROPIES: Final = "only `entropy_scaled` reads them, before the export; the journal keeps the measure"
CODEC: Final = "rows of two codecs are refused instead; the trainer has the tokenizer"
NUMBERS: Final = "the format holds what enters the loss, and this does not"
SCALE: Final = (
    "exports read it to refuse several scales; a run that divides each tree by its own number says it in reasons"
)
EVERYWHERE: Final = {"leaf_id": LEAF_ID, "entropies": ENTROPIES, "normaliser_of": SCALE}
ABSENT: Final[Mapping[str, Mapping[str, str]]] = {
    "record": EVERYWHERE,
    "jsonl": EVERYWHERE,
    "parquet": EVERYWHERE,
    "arrays": {
        **EVERYWHERE,
        **dict.fromkeys(("codec", "codec_sha256"), CODEC),
        **dict.fromkeys((*IN_ABOUT - IN_ARRAYS.keys(), "public"), NUMBERS),
    },
    "search_r1": {
        **EVERYWHERE,
        **dict.fromkeys(("codec", "codec_sha256"), CODEC),
        "advantages": "Search-R1 computes advantages of its own from rewards",
        "logprobs": "Search-R1 computes old logprobs again",
    },
    "verl": {**EVERYWHERE, **dict.fromkeys(("codec", "codec_sha256"), CODEC)},
    "verifiers": {**EVERYWHERE, **dict.fromkeys(("codec", "codec_sha256"), CODEC)},
    "slime": {**EVERYWHERE, **dict.fromkeys(("codec", "codec_sha256"), CODEC)},
    "slime_train": {
        **EVERYWHERE,
        **dict.fromkeys(("codec", "codec_sha256"), CODEC),
        **dict.fromkeys((*IN_ABOUT - {"reward", "stop"}, "uid"), "the default converter's keys are fixed; see `slime`"),
    },
}
"""Export -> field -> why no column carries it."""


class CodecOf(ByteCodec):
    """Bytes, under the hash of a row."""

    def __init__(self, row: Row) -> None:
        object.__setattr__(self, "_row", row)

    @property
    def sha256(self) -> str:
        return self._row.codec_sha256  # type: ignore[attr-defined]


def row() -> Row:
    growth = bare(public={"data_source": "sums"})
    fork(growth, ROOT, [step("ab"), end("c", 0.5)])
    (made,) = rows_of(growth.tree, credit="leaf_loo")
    return made


def changed(made: Row) -> dict[str, Row]:
    """Field -> the row with another value of it."""
    prompt, said, answered, *rest = made.spans
    spans = (
        prompt,
        replace(said, version=3),
        RowSpan(1, answered.node, "sampled", 4, SOURCE, ToolCall("s", "q")),
        *rest,
    )
    other: dict[str, Any] = {
        "uid": "other", "tree_seed": 8, "split": "test", "leaf": 9, "leaf_id": 9, "ids": made.ids + 1,
        "weights": made.weights * np.arange(len(made)) / 10 * (np.arange(len(made)) != 4),
        "advantages": made.advantages + 0.25, "logprobs": made.logprobs - 0.5,
        "entropies": np.ones(len(made), np.float32), "spans": spans, "reward": 0.75, "parts": {"part": 0.125},
        "is_oracle": True, "stop": "length", "credit": "leaf_grpo", "reasons": ("why",), "policy": "fraction",
        "normaliser": 3.0, "normaliser_of": "run", "codec": "other", "codec_sha256": "0" * 64,
        "public": {"data_source": "words"},
    }  # fmt: skip
    assert set(other) == FIELDS, "give the new field of Row another value here"
    return {name: replace(made, **{name: value}) for name, value in other.items()}


def flat(data: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested columns by dotted names."""
    found: dict[str, Any] = {}
    for name, value in data.items():
        found[prefix + name] = value
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{name}.")
    return found


def columns(export: str, made: Row, folder: Path) -> dict[str, str]:
    """Column -> what an export of one row holds there, as text."""
    if export == "record":
        return {name: repr(value) for name, value in flat(record(made)).items()}
    path = folder / {"parquet": "rows.parquet"}.get(export, "rows.npz")
    if export in ("jsonl", "slime", "slime_train", "verifiers"):
        path = path.with_suffix(".jsonl")
    own = {"codec": CodecOf(made)} if export == "verifiers" else {}
    plugins.find("export", export)([made], path, force=True, **own)
    found: dict[str, Any] = {}
    if path.suffix == ".npz":
        with np.load(path) as arrays:
            found |= {name: arrays[name].tolist() for name in arrays}
    if path.suffix == ".parquet":
        parquet = pytest.importorskip("pyarrow.parquet")
        found |= flat(parquet.read_table(path).to_pylist()[0])
    if (lines := path.with_suffix(".jsonl")).exists():
        found |= flat(json.loads(lines.read_text("utf-8")))
    return {name: repr(value) for name, value in found.items()}


def test_every_export_of_rows_has_a_table() -> None:
    assert set(COLUMNS) - {"record"} == set(ABSENT) - {"record"} == set(plugins.known("export")) - OF_TREES


@pytest.mark.parametrize("export", COLUMNS)
def test_every_field_of_a_row_is_exported_or_says_why_not(export: str, tmp_path: Path) -> None:
    carried, absent = COLUMNS[export], ABSENT[export]
    assert not carried.keys() & absent.keys()
    assert carried.keys() | absent.keys() == FIELDS
    if export == "parquet":
        pytest.importorskip("pyarrow")
    made = row()
    before = columns(export, made, tmp_path)
    for name, other in changed(made).items():
        after = columns(export, other, tmp_path)
        differing = {column for column in before.keys() | after.keys() if before.get(column) != after.get(column)}
        if name in carried:
            assert carried[name] in differing, f"{name} is not in column {carried[name]!r} of {export}"
        else:
            assert not differing, f"{export} carries {name} in {sorted(differing)}: name the column"
