"""Questions from Parquet and Arrow files."""

import decimal
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.tasks.saved_data import parquet, questions, stream, table

from ramify.core.errors import ConfigError
from ramify.core.problem import Problem
from ramify.tasks.data import DataConfig, DataFile, read_problems


def read(path: Path, **columns: Any) -> list[Problem]:
    problems, faults = read_problems(DataConfig(path=str(path), **columns))
    assert not faults
    return problems


def refusal(path: Path, **columns: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        read_problems(DataConfig(path=str(path), **columns))
    return str(caught.value)


@pytest.mark.covers("S3.8")
def test_a_parquet_file_is_read_in_the_order_of_its_rows(tmp_path: Path):
    path = tmp_path / "data.parquet"
    rows = [{"q": f"{n}?", "id": n, "gold": [str(n), f"{n}.0"], "level": None if n else 2} for n in range(3000)]
    pq.write_table(table(rows), path, row_group_size=700)
    problems = read(path, question="q", uid="id", answer="gold")
    assert [problem.uid for problem in problems] == [str(n) for n in range(3000)]
    assert problems[0] == Problem("0", "0?", public={"level": 2}, secret={"answer": ["0", "0.0"]})
    assert problems[2999].public == {"level": None}


def test_nested_columns_and_messages_are_read_from_parquet(tmp_path: Path):
    system = {"role": "system", "content": "s", "name": None}
    user = {"role": "user", "content": "a?", "name": None}
    rows = [{"prompt": [system, user], "reward_model": {"ground_truth": "2", "style": "rule"}, "extra": {"index": 4}}]
    mapped = {"question": "prompt", "uid": "extra.index", "answer": "reward_model.ground_truth"}
    (problem,) = read(parquet(tmp_path / "data.parquet", rows), **mapped)
    public = {"reward_model": {"style": "rule"}, "extra": {}, "system_message": "s"}
    assert problem == Problem("4", "a?", public=public, secret={"answer": "2"})


def test_a_column_called_like_a_path_comes_before_the_path_in_parquet_too(tmp_path: Path):
    rows = [{"question": "a?", "gold.text": "exact", "gold": {"text": "nested", "by": "me"}}]
    (problem,) = read(parquet(tmp_path / "data.parquet", rows), answer="gold.text")
    assert (problem.secret, problem.public) == ({"answer": "exact"}, {"gold": {"by": "me"}})
    (problem,) = read(parquet(tmp_path / "data.parquet", rows), public=("gold",))
    assert problem.public == {"gold": {"text": "nested", "by": "me"}}


def test_an_arrow_file_is_read_as_a_stream_or_with_a_footer(tmp_path: Path):
    content = table(questions(*(f"{n}?" for n in range(2500))))
    with pa.OSFile(str(tmp_path / "b.arrow"), "wb") as file, pa.ipc.new_file(file, content.schema) as writer:
        writer.write_table(content, max_chunksize=600)
    whole = read(stream(tmp_path / "a.arrow", content), answer="answer")
    assert [problem.question for problem in whole] == [f"{n}?" for n in range(2500)]
    assert whole == read(tmp_path / "b.arrow", answer="answer")
    assert whole == read(stream(tmp_path / "c.arrow", content, rows_a_batch=7), answer="answer")


ODD: dict[str, tuple[Any, Any]] = {
    "when": (datetime(2025, 1, 2), pa.timestamp("ns")),
    "day": (datetime(2025, 1, 2).date(), pa.date32()),
    "price": (decimal.Decimal("1.20"), pa.decimal128(5, 2)),
    "image": ({"bytes": b"\x89PNG", "path": None}, pa.struct({"bytes": pa.binary(), "path": pa.string()})),
    "pages": ([b"x"], pa.list_(pa.binary())),
    "counts": ([("a", 1)], pa.map_(pa.string(), pa.int64())),
}
"""Column -> (value, type), each of which JSON has no form for."""


@pytest.mark.covers("S3.8")
def test_columns_that_json_cannot_hold_are_left_out_and_refused_by_name(tmp_path: Path):
    row = {"question": "a?", "level": 1, **{name: value for name, (value, _) in ODD.items()}}
    path = parquet(tmp_path / "data.parquet", [row], **{name: kind for name, (_, kind) in ODD.items()})
    assert [problem.public for problem in read(path)] == [{"level": 1}]
    for name in ODD:
        assert f"data.public[0] = {name!r}: the column has the type " in refusal(path, public=(name,))
        assert f"data.answer = {name!r}: the column has the type " in refusal(path, answer=name)


def test_a_nested_column_is_read_for_its_path_whatever_stands_beside_it(tmp_path: Path):
    rows = [{"question": "a?", "meta": {"gold": "x", "image": b"\x89PNG"}, "level": 1}]
    path = parquet(tmp_path / "data.parquet", rows)
    (problem,) = read(path, answer="meta.gold", public=("level",))
    assert (problem.secret, problem.public) == ({"answer": "x"}, {"level": 1})
    assert "data.parquet row 1: column 'meta.image' holds a value of type bytes" in refusal(path, answer="meta.gold")
    assert "data.answer = 'meta.image': the column has the type binary, which JSON cannot hold" in refusal(
        path, answer="meta.image"
    )


def test_numbers_are_plain_and_those_that_are_not_finite_are_none(tmp_path: Path):
    content = {
        "question": ["a?"],
        "half": pa.array(np.array([0.5], np.float16)),
        "nan": [float("nan")],
        "nested": [{"x": [float("inf"), 1.0]}],
        "big": pa.array([2**64 - 1], pa.uint64()),
        "word": pa.array(["x"]).dictionary_encode(),
    }
    pq.write_table(pa.table(content), tmp_path / "data.parquet")
    (problem,) = read(tmp_path / "data.parquet")
    wanted = {"half": 0.5, "nan": None, "nested": {"x": [None, 1.0]}, "big": 2**64 - 1, "word": "x"}
    assert problem.public == wanted
    assert {type(value) for value in problem.public.values()} == {float, type(None), dict, int, str}


def test_json_text_is_what_it_says(tmp_path: Path):
    kind = pa.json_()
    text = pa.array(['{"text": "x", "by": 1}', "[2]", "{", None]).cast(pa.string())
    columns = {"question": ["a?", "b?", "c?", "d?"], "gold": pa.ExtensionArray.from_storage(kind, text)}
    path = stream(tmp_path / "data.arrow", pa.table(columns))
    problems, faults = read_problems(DataConfig(path=str(path), answer="gold", on_bad_row="skip"))
    assert [problem.secret["answer"] for problem in problems] == [{"text": "x", "by": 1}, [2]]
    assert [str(fault.place) for fault in faults] == [f"{path} row 3", f"{path} row 4"]
    assert "column 'gold' holds a text that is not JSON" in faults[0].message
    problems, _ = read_problems(DataConfig(path=str(path), answer="gold.text", on_bad_row="skip"))
    assert [(p.secret["answer"], p.public) for p in problems] == [("x", {"gold": {"by": 1}})]


@pytest.mark.covers("S3.8")
def test_bad_rows_of_parquet_are_named_by_file_and_row_and_counted(tmp_path: Path):
    rows = [{"question": text, "answer": "x"} for text in ("a?", None, "b?", " ")]
    path = parquet(tmp_path / "data.parquet", rows)
    lines = refusal(path, answer="answer").splitlines()
    assert (
        lines[0]
        == f"{path} row 2: column 'question' holds no question: None; a question is a text or a list of messages"
    )
    assert (
        lines[1]
        == f"{path} row 4: column 'question' holds no question: ' '; a question is a text or a list of messages"
    )
    task = DataFile(DataConfig(path=str(path), answer="answer", on_bad_row="skip"))
    assert [problem.question for problem in task.problems("heldout", 2, 0)] == ["a?", "b?"]
    assert [fault.place.number for fault in task.skipped] == [2, 4]


def test_a_missing_answer_of_a_column_of_numbers_is_no_answer(tmp_path: Path):
    rows = [{"question": "a?", "gold": 4.0}, {"question": "b?", "gold": float("nan")}]
    assert "row 2: column 'gold' holds no answer: nan" in refusal(parquet(tmp_path / "d.parquet", rows), answer="gold")


def test_a_text_that_is_no_utf8_is_a_bad_row_and_the_others_of_its_batch_are_read(tmp_path: Path):
    texts = pa.Array.from_buffers(pa.string(), 3, pa.array([b"a?", b"\xff\xfe", b"c?"], pa.binary()).buffers())
    path = stream(tmp_path / "data.arrow", pa.table({"question": texts}))
    problems, (fault,) = read_problems(DataConfig(path=str(path), on_bad_row="skip"))
    assert [problem.question for problem in problems] == ["a?", "c?"]
    assert (fault.place.number, fault.message[:20]) == (2, "a text is not UTF-8:")


def test_two_rows_with_one_id_are_named(tmp_path: Path):
    rows = [{"question": "a?", "id": 1}, {"question": "b?", "id": 1}]
    said = refusal(parquet(tmp_path / "data.parquet", rows), uid="id")
    assert "data.parquet row 2: row 1 has the uid '1' too;" in said


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"question": "qestion"}, "data.question = 'qestion': the file has no such column; did you mean 'question'"),
        ({"answer": "meta.gld"}, "data.answer = 'meta.gld': the file has no such column; did you mean 'meta.gold'"),
        ({"public": ("question.x",)}, "data.public[0] = 'question.x': the file has no such column"),
        ({"uid": "nr", "answer": "gold"}, "data.uid = 'nr': the file has no such column"),
    ],
)
def test_a_column_that_is_not_there_is_named_with_the_file(tmp_path: Path, columns: dict[str, Any], message: str):
    rows = [{"question": "a?", "meta": {"gold": "x"}}]
    path = parquet(tmp_path / "data.parquet", rows)
    said = refusal(path, **columns)
    assert said.startswith(f"{path}: ") and message in said


def test_columns_of_one_name_are_refused(tmp_path: Path):
    content = pa.Table.from_arrays([pa.array(["a?"]), pa.array(["b?"])], names=["question", "question"])
    pq.write_table(content, tmp_path / "data.parquet")
    assert "several columns have the name 'question'" in refusal(tmp_path / "data.parquet")


@pytest.mark.parametrize("content", [b"", b"PAR1", b"no parquet at all", b"PAR1 and nothing that fits PAR1"])
def test_a_damaged_parquet_file_is_named(tmp_path: Path, content: bytes):
    (tmp_path / "data.parquet").write_bytes(content)
    assert "data.parquet cannot be read: " in refusal(tmp_path / "data.parquet")


def test_a_parquet_file_with_a_damaged_page_is_named(tmp_path: Path):
    path = tmp_path / "data.parquet"
    pq.write_table(table(questions(*(f"{n}?" for n in range(500)))), path, compression="zstd")
    content = bytearray(path.read_bytes())
    content[40:400] = bytes(360)
    path.write_bytes(content)
    assert "data.parquet cannot be read: " in refusal(path)


def test_an_arrow_stream_that_ends_anywhere_too_early_is_named(tmp_path: Path):
    path = stream(tmp_path / "data.arrow", table(questions("a?", "b?", "c?")), rows_a_batch=1)
    content = path.read_bytes()
    for size in range(0, len(content), 8):
        path.write_bytes(content[:size])
        said = refusal(path)
        assert (
            "data.arrow cannot be read: " in said
            or "data.arrow is incomplete: it ends before the end of its stream" in said
        ), size


def test_a_file_of_no_rows_holds_no_problem(tmp_path: Path):
    empty = table(questions("a?")).slice(0, 0)
    pq.write_table(empty, tmp_path / "data.parquet")
    assert "data.parquet: no row holds a problem" in refusal(tmp_path / "data.parquet")
    assert "data.arrow: no row holds a problem" in refusal(stream(tmp_path / "data.arrow", empty))


def test_parquet_without_pyarrow_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = parquet(tmp_path / "data.parquet", questions("a?"))
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert "pip install 'ramify[parquet]'" in refusal(path)
