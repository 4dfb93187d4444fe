"""`ramify index`: from a corpus on disk to an index that the search tool and the server can use."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.cli.commands import ramify

from ramify.tools.search_index import open_index

ROWS = [{"id": i, "contents": f"Title {i}\npassage about number{i}"} for i in range(2000)]


def corpus(folder: Path, rows: list[Any] = ROWS, name: str = "corpus.jsonl") -> Path:
    path = folder / name
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return path


def test_a_corpus_becomes_an_index_that_can_be_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = ramify(capsys, "index", corpus(tmp_path), "--out", tmp_path / "index")
    assert said.code == 0
    assert said.out.startswith(f"2000 passages in {tmp_path / 'index'}, ")
    assert f"ramify retriever serve {tmp_path / 'index'}" in said.err
    (hit,) = open_index(tmp_path / "index").search("number1234", 3)
    assert (hit.passage.uid, hit.passage.title, hit.passage.text) == ("1234", "Title 1234", "passage about number1234")


def test_columns_and_backend_are_flags_and_the_result_is_one_json_object(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("tantivy")
    path = corpus(
        tmp_path, [{"_id": "x", "name": "Owl", "body": "the owl"}, {"_id": "y", "name": "Fox", "body": "fox"}]
    )
    flags = ("--text", "body", "--title", "name", "--id", "_id", "--backend", "tantivy", "--json")
    said = ramify(capsys, "index", path, "--out", tmp_path / "index", *flags)
    values = said.json
    assert values.pop("seconds") >= 0
    assert values == {
        "schema": "ramify.index/1",
        "index": str(tmp_path / "index"),
        "passages": 2,
        "bad_rows": 0,
        "backend": "tantivy",
    }
    assert [hit.passage.uid for hit in open_index(tmp_path / "index").search("owl", 3)] == ["x"]


def test_bad_rows_stop_it_and_leave_nothing_or_are_left_out_and_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = corpus(tmp_path, [{"text": "good"}, {"text": ""}, {"txt": "b"}, {"text": "good too"}])
    said = ramify(capsys, "index", path, "--out", tmp_path / "index")
    assert said.code == 2
    assert f"{path}:2: column 'text' holds no text: ''" in said.err
    assert f"{path}:3: there is no column 'text' or 'contents' among 'txt'" in said.err
    assert not (tmp_path / "index").exists()
    said = ramify(capsys, "index", path, "--out", tmp_path / "index", "--on-bad-row", "skip", "--json")
    assert (said.json["passages"], said.json["bad_rows"]) == (2, 2)
    assert "2 bad rows were skipped:" in said.err


@pytest.mark.parametrize(
    ("name", "message"),
    [("nowhere.jsonl", "nowhere.jsonl: there is no such file"), ("corpus.txt", "a corpus ends in .jsonl, .ndjson")],
)
def test_a_corpus_that_is_none_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, message: str
) -> None:
    said = ramify(capsys, "index", tmp_path / name, "--out", tmp_path / "index")
    assert said.code == 2
    assert message in said.err


def test_an_index_is_never_written_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = corpus(tmp_path)
    said = ramify(capsys, "index", path, "--out", path)
    assert said.code == 2
    assert "already exists; remove it or name another path" in said.err
