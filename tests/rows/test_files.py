"""Exports to files: one schema, the same bytes for the same rows, whole or not at all."""

import json
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.credit.trees import ask, bare, end, fork, give, nested, step, wild

from ramify.core.errors import ExportError
from ramify.core.tree import ROOT, Step, Tree
from ramify.rows import Row, arrays, jsonl, parquet, rows_of
from ramify.rows.files import json_line
from ramify.rows.records import SCHEMA_VERSION, decimals, record

SCHEMA = Path(__file__).parents[2] / "docs" / "concepts" / "rows.md"


def written(tmp_path: Path, rows: list[Row]) -> list[dict[str, Any]]:
    assert jsonl.write(rows, tmp_path / "rows.jsonl") == len(rows)
    return [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text("utf-8").splitlines()]


def test_a_line_holds_a_whole_row(tmp_path: Path) -> None:
    rows = [row for seed in range(5) for row in rows_of(wild(seed))]
    for row, line in zip(rows, written(tmp_path, rows), strict=True):
        assert line["schema_version"] == SCHEMA_VERSION
        assert line["ids"] == row.ids.tolist()
        assert line["weights"] == row.weights.tolist()
        assert line["advantages"] == row.advantages.tolist()
        logprobs = np.array([np.nan if x is None else x for x in line["logprobs"]], np.float32)  # type: ignore[union-attr]
        assert np.array_equal(logprobs, row.logprobs, equal_nan=True)
        assert line["is_unbiased"] == (line["reasons"] == [])


def test_lines_have_their_keys_in_the_documented_order(tmp_path: Path) -> None:
    keys = list(written(tmp_path, rows_of(nested()))[0])
    tables = SCHEMA.read_text("utf-8").split("\n## ")[1]
    documented = [line.split("`")[1] for line in tables.splitlines() if line.startswith("| `")]
    span = list(record(rows_of(nested())[0])["spans"][0])
    assert documented == [*keys, *span]


def measured(made: Step, entropy: float) -> Step:
    return replace(made, measures={"step_entropy_topk": entropy})


def test_each_step_of_a_row_has_its_entropy_and_a_split_one_has_it_at_its_tail(tmp_path: Path) -> None:
    growth = bare()
    chain = [measured(step("abcd"), 0.5), measured(step("e"), 0.25), end("f", 1.0)]
    first, _ = fork(growth, ROOT, chain, [measured(end("g", 0.5), float("nan"))])
    fork(growth, growth.tree.path(first)[1], [measured(end("h", 0.0), 2.0)], at=growth.tree.length(ROOT) + 2)
    found = [
        [(span["num_tokens"], span["step_entropy"]) for span in line["spans"] if span["origin"] == "sampled"]
        for line in written(tmp_path, rows_of(growth.tree, credit="leaf_grpo"))
    ]
    assert found == [[(1, None)], [(2, None), (1, 2.0)], [(2, None), (2, 0.5), (1, 0.25), (1, None)]]
    assert {span["step_entropy"] for row in rows_of(nested()) for span in record(row)["spans"]} == {None}


def test_the_same_tree_gives_the_same_bytes_whatever_came_first() -> None:
    def grown(order: list[int]) -> Tree:
        growth = bare()
        commands = ask(growth, ROOT, 4)
        for number in order:
            give(growth, commands[number], step(f"s{number}"), end(f"e{number}", float(number)))
        return growth.tree

    one, other = grown([0, 1, 2, 3]), grown([3, 1, 0, 2])
    assert one.leaves() != other.leaves()
    assert list(jsonl.lines(rows_of(one))) == list(jsonl.lines(rows_of(other)))


def test_rows_are_streamed(tmp_path: Path) -> None:
    """A line is on its way before the next row is made."""
    trees = iter([nested(), nested()])
    lines = jsonl.lines(row for tree in trees for row in rows_of(tree))
    next(lines)
    assert sum(1 for _ in trees) == 1


def test_floats_are_the_shortest_that_come_back() -> None:
    values = np.array([-0.1, np.nan, -1e-5, -16.25], np.float32)
    assert decimals(values) == [-0.1, None, -1e-05, -16.25]


@pytest.mark.parametrize("text", ["<|im_end|>", "\u2028\n\r", "\udc80", "é漢"])
def test_any_text_stays_on_its_line(text: str, tmp_path: Path) -> None:
    growth = bare(public={"text": text})
    fork(growth, ROOT, [end("a", 1.0)])
    jsonl.write(rows_of(growth.tree), tmp_path / "rows.jsonl")
    (line,) = (tmp_path / "rows.jsonl").read_bytes().split(b"\n")[:-1]
    assert json.loads(line)["public"]["text"] == text.replace("\udc80", "?")


def test_public_columns_are_sorted_and_plain() -> None:
    growth = bare(public={"b": np.float32(0.5), "a": (1, {"z": None, "y": float("nan")})})
    fork(growth, ROOT, [end("a", 1.0)])
    (line,) = jsonl.lines(rows_of(growth.tree))
    assert line.endswith(b'"public":{"a":[1,{"y":null,"z":null}],"b":0.5}}\n')


def test_a_column_that_is_no_json_is_named(tmp_path: Path) -> None:
    growth = bare(public={"image": [b"png"]})
    fork(growth, ROOT, [end("a", 1.0)])
    with pytest.raises(ExportError, match=r"public\.image\[0\] holds b'png' of type bytes"):
        jsonl.write(rows_of(growth.tree), tmp_path / "rows.jsonl")


@pytest.mark.parametrize("export", [jsonl.write, parquet.write, arrays.write])
def test_a_file_that_cannot_be_whole_is_not_there(export, tmp_path: Path) -> None:
    def rows():
        yield from rows_of(nested())
        raise ExportError("the next tree has no rewards")

    target = tmp_path / "rows"
    with pytest.raises(ExportError, match="no rewards"):
        export(rows(), target)
    assert not list(tmp_path.iterdir())
    export(rows_of(nested()), target)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(ExportError, match="no rewards"):
        export(rows(), target, force=True)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert set(before) == {"rows", ".rows.export"}


@pytest.mark.parametrize("export", [jsonl.write, parquet.write, arrays.write])
def test_a_place_that_cannot_be_written_is_named(export, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ExportError, match="cannot write"):
        export(rows_of(nested()), tmp_path / "file" / "rows")


def test_parquet_has_the_same_columns(tmp_path: Path) -> None:
    read_table = pytest.importorskip("pyarrow.parquet").read_table
    rows = [row for seed in range(5) for row in rows_of(wild(seed))]
    assert parquet.write(rows, tmp_path / "rows.parquet") == len(rows)
    table = read_table(tmp_path / "rows.parquet").to_pylist()
    lines = [json.loads(line) for line in jsonl.lines(rows)]
    for columns, line in zip(table, lines, strict=True):
        assert list(columns) == list(line)
        for span in columns["spans"]:
            span["call"] = None if span["call"] is None else json.loads(span["call"])
        assert json.loads(columns["public"]) == line["public"]
        assert dict(columns["parts"]) == line["parts"]
        assert np.float32(columns["logprobs"]).tolist() == pytest.approx(
            np.float32(line["logprobs"]).tolist(), nan_ok=True
        )
        for name in set(line) - {"public", "parts", "logprobs"}:
            assert columns[name] == line[name]


def test_parquet_without_pyarrow_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ExportError, match=r"pip install 'ramify\[parquet\]'"):
        parquet.write(rows_of(nested()), tmp_path / "rows.parquet")


def test_arrays_are_written_as_they_are(tmp_path: Path) -> None:
    rows = rows_of(nested())
    assert arrays.write(rows, tmp_path / "rows.npz") == 5
    with np.load(tmp_path / "rows.npz") as saved:
        assert np.array_equal(saved["input_ids"], arrays.padded(rows).input_ids)
        assert saved["uids"].tolist() == ["p"] * 5
    first = (tmp_path / "rows.npz").read_bytes()
    arrays.write(rows, tmp_path / "rows.npz", force=True)
    assert (tmp_path / "rows.npz").read_bytes() == first


NUMBERS = st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from(
    [0.0, -0.0, 1e-4, math.nextafter(1e-4, 0), 1e16, math.nextafter(1e16, 0), 1e-5, 5e-324, -1e300, 123456789.0]
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | NUMBERS | st.text(st.characters()),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters()), inner),
)


@pytest.mark.slow
@given(VALUES)
def test_a_line_is_what_python_writes(value: Any) -> None:
    expected = json.dumps({"x": value}, ensure_ascii=False, separators=(",", ":"))
    assert json_line({"x": value}) == expected.encode("utf-8", errors="replace") + b"\n"


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_number_that_json_has_none_for_is_refused(bad: float) -> None:
    with pytest.raises(ExportError, match=f"'share': {bad}.* holds a number that is not finite"):
        json_line({"x": [{"share": bad}]})
