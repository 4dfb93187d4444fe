"""Corpora of every layout are read, and every fault of one is named by file, line and column."""

import gzip
import json
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as arrow
import pyarrow.parquet as parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramify.core.errors import ConfigError
from ramify.tools.corpus import BATCH, MAX_FAULTS_SHOWN, MAX_LINE_BYTES, Columns, Corpus
from ramify.tools.passages import Passage
from ramify.tools.search_index import build_index, open_index

BODIES = [Passage("the owl", "Owl", "7"), Passage("the fox", "Fox", "8")]


def written(folder: Path, content: str | bytes, name: str = "corpus.jsonl") -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def lines(*rows: Any) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def tabled(folder: Path, columns: dict[str, Any], *, rows_a_group: int = 1000) -> Path:
    path = folder / "corpus.parquet"
    parquet.write_table(arrow.table(columns), path, row_group_size=rows_a_group)
    return path


def read(path: Path, columns: Columns = Columns(), **options: Any) -> list[Passage]:  # noqa: B008 - frozen
    return [*Corpus(path, columns, **options).passages()]


def refusal(path: Path, columns: Columns = Columns(), **options: Any) -> str:  # noqa: B008 - frozen
    with pytest.raises(ConfigError) as caught:
        read(path, columns, **options)
    return str(caught.value)


# -- layouts ----------------------------------------------------------------------------------------------------------


def test_text_title_and_id_are_found_by_their_usual_names(tmp_path: Path) -> None:
    owl, fox = ({"id": 7, "title": "Owl", "text": "the owl", "more": 1}, {"id": "8", "title": "Fox", "text": "the fox"})
    assert read(written(tmp_path, lines(owl, fox))) == BODIES
    assert read(written(tmp_path, lines({"text": "alone"}))) == [Passage("alone")]
    assert read(written(tmp_path, lines({"text": "x", "title": None, "id": None}))) == [Passage("x")]


def test_search_r1s_contents_are_a_title_a_newline_and_the_text(tmp_path: Path) -> None:
    rows = lines({"id": "7", "contents": "Owl\nthe owl"}, {"id": "8", "contents": "Fox\nthe fox"})
    assert read(written(tmp_path, rows)) == BODIES
    rows = lines({"contents": '"Two lines"\na\nb\n'}, {"contents": "Only a title"})
    assert read(written(tmp_path, rows)) == [Passage("a\nb\n", '"Two lines"'), Passage("", "Only a title")]


def test_where_there_is_a_text_column_contents_are_not_read(tmp_path: Path) -> None:
    rows = lines({"id": "7", "contents": "Owl\nthe owl", "text": "the owl", "title": "Owl"})
    assert read(written(tmp_path, rows)) == BODIES[:1]


def test_columns_may_be_called_anything(tmp_path: Path) -> None:
    path = written(tmp_path, lines({"_id": 7, "name": "Owl", "body": "the owl"}))
    assert read(path, Columns(text="body", title="name", uid="_id")) == BODIES[:1]
    path = written(tmp_path, lines({"name": "Owl", "contents": "a\nb"}))
    assert read(path, Columns(title="name")) == [Passage("a\nb", "Owl")]
    assert read(path, Columns(text="contents")) == [Passage("a\nb")]


@pytest.mark.parametrize("name", ["corpus.jsonl", "corpus.JSONL.GZ", "corpus.ndjson.gz"])
def test_a_byte_order_mark_blank_lines_and_line_separators_are_no_fault(tmp_path: Path, name: str) -> None:
    content = '\ufeff{"text": "a\u2028b"}\r\n\n   \n{"text": "c"}'.encode()
    path = written(tmp_path, gzip.compress(content) if name.lower().endswith("gz") else content, name)
    assert read(path) == [Passage("a\u2028b"), Passage("c")]


def test_parquet_is_read_like_the_same_rows_of_jsonl(tmp_path: Path) -> None:
    columns = {"id": ["7", "8"], "title": ["Owl", "Fox"], "text": ["the owl", "the fox"], "unread": [[1], [2]]}
    assert read(tabled(tmp_path, columns)) == BODIES
    assert read(tabled(tmp_path, {"contents": ["Owl\nthe owl"], "id": [7]})) == BODIES[:1]
    columns = {"_id": [7, 8], "body": arrow.array(["the owl", "the fox"]).dictionary_encode(), "name": ["Owl", "Fox"]}
    assert read(tabled(tmp_path, columns), Columns(text="body", title="name", uid="_id")) == BODIES


def test_row_groups_and_batches_keep_the_order(tmp_path: Path) -> None:
    texts = [f"text {i}" for i in range(2 * BATCH + 7)]
    path = tabled(tmp_path, {"text": texts}, rows_a_group=BATCH - 1)
    assert [passage.text for passage in read(path)] == texts


@given(rows=st.lists(st.tuples(st.text(min_size=1), st.text(), st.integers()), min_size=1, unique_by=lambda r: r[2]))
def test_any_text_comes_back_as_it_was_written(tmp_path_factory: pytest.TempPathFactory, rows: list[Any]) -> None:
    rows = [(f"x{text}", title, uid) for text, title, uid in rows]
    path = written(tmp_path_factory.mktemp("corpus"), lines(*({"text": t, "title": n, "id": i} for t, n, i in rows)))
    assert read(path) == [Passage(text, title, str(uid)) for text, title, uid in rows]


# -- faults -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "columns", "message"),
    [
        ('{"text": "a"}\n{"body": "b"}', Columns(), "corpus.jsonl:2: there is no column 'text' or 'contents' among "),
        ("{}", Columns(), "corpus.jsonl:1: there is no column 'text' or 'contents' among none; name the one"),
        ('{"text": "a"}', Columns(text="txt"), "corpus.jsonl:1: there is no column 'txt'; did you mean 'text'?"),
        ('{"text": "a"}', Columns(title="name"), "corpus.jsonl:1: there is no column 'name'; known: text"),
        ('{"text": "a"}', Columns(uid="_id"), "corpus.jsonl:1: there is no column '_id'"),
        ('{"text": " \\n"}', Columns(), "corpus.jsonl:1: column 'text' holds no text: ' \\n'"),
        ('{"contents": ""}', Columns(), "corpus.jsonl:1: column 'contents' holds no text: ''"),
        ('{"text": 3}', Columns(), "column 'text' holds no text: 3"),
        ('{"text": null}', Columns(), "column 'text' holds no text: None"),
        ('{"text": "a", "title": ["b"]}', Columns(), "column 'title' holds no title: ['b']"),
        ('{"text": "a", "id": 1.5}', Columns(), "column 'id' holds no id: 1.5"),
        ('{"text": "a", "id": true}', Columns(), "column 'id' holds no id: True"),
        ('{"text": "a", "id": ""}', Columns(), "column 'id' holds no id: ''"),
        ('{"text": "a", "id": null}', Columns(uid="id"), "column 'id' holds no id: None"),
        ('{"text": "a", "id": 1}\n{"text": "b", "id": "1"}', Columns(), ":2: id '1' was used in line 1; an id"),
        ('{"text": "a"}\n{"text": ', Columns(), "corpus.jsonl:2: this is no JSON object"),
        ('["text"]', Columns(), "corpus.jsonl:1: this is no JSON object"),
        (
            '{"text": "a", "x": ' + "[" * 99_999 + "]" * 99_999 + "}",
            Columns(),
            "corpus.jsonl:1: this is nested too deep",
        ),
        ('{"text": "a", "id": ' + "9" * 5000 + "}", Columns(), "corpus.jsonl:1: "),
        (
            '{"text": "a"}\n'.encode("utf-16"),
            Columns(),
            "corpus.jsonl:1: this is no UTF-8: invalid start byte at byte 0",
        ),
        ('{"text": "\\ud800"}', Columns(), "corpus.jsonl:1: this is no JSON object"),
        ('{"text": "a"}\n\ufeff{"text": "b"}', Columns(), ":2: this is no JSON object: JSON is malformed: invalid ch"),
        (b'{"text": "a"}\n{"text": "\xff"}', Columns(), "corpus.jsonl:2: this is no UTF-8: invalid start byte at"),
        ("", Columns(), "corpus.jsonl: no row holds a passage"),
        ("\n\n", Columns(), "corpus.jsonl: no row holds a passage"),
    ],
)
def test_a_bad_row_is_named_by_file_line_and_column(
    tmp_path: Path, content: str | bytes, columns: Columns, message: str
) -> None:
    assert message in refusal(written(tmp_path, content), columns)


@pytest.mark.parametrize(
    ("columns", "settings", "message"),
    [
        ({"text": ["a", None]}, Columns(), "corpus.parquet: row 2: column 'text' holds no text: None"),
        ({"text": [1]}, Columns(), "corpus.parquet: row 1: column 'text' holds no text: 1"),
        ({"text": [{"a": "b"}]}, Columns(), "row 1: column 'text' holds no text: {'a': 'b'}"),
        ({"text": ["a", "b"], "id": [4, 4]}, Columns(), "row 2: id '4' was used in row 1"),
        ({"text": ["a"], "id": arrow.array([1], arrow.timestamp("ns"))}, Columns(), "row 1: this cannot be read: "),
        (
            {"text": ["a"], "id": arrow.array([1 << 60], arrow.timestamp("ms"))},
            Columns(),
            "row 1: this cannot be read: ",
        ),
        ({"text": [["a", "b"]]}, Columns(), "row 1: column 'text' holds no text: ['a', 'b']"),
        ({"body": ["a"]}, Columns(), "cannot be read: there is no column 'text' or 'contents' among 'body'"),
        ({"text": ["a"]}, Columns(title="titel"), "cannot be read: there is no column 'titel'; known: text"),
        ({"text": arrow.array([], arrow.string())}, Columns(), "corpus.parquet: no row holds a passage"),
    ],
)
def test_a_bad_row_of_parquet_is_named_by_its_number(
    tmp_path: Path, columns: dict[str, Any], settings: Columns, message: str
) -> None:
    assert message in refusal(tabled(tmp_path, columns), settings)


def test_a_text_of_parquet_that_is_no_utf8_spoils_its_own_row_alone(tmp_path: Path) -> None:
    texts = arrow.array([b"good", b"b\xffd", b"good too"]).view(arrow.utf8())
    path = tabled(tmp_path, {"text": texts})
    assert "row 2: this is no UTF-8: invalid start byte at byte 1" in refusal(path)
    assert read(path, on_bad_row="skip") == [Passage("good"), Passage("good too")]


def test_every_bad_row_is_named_at_once_and_reading_ends_where_no_more_would_be(tmp_path: Path) -> None:
    nine = refusal(written(tmp_path, '{"text": ""}\n' * 9 + '{"text": "a"}\n')).splitlines()
    assert [line.partition(": ")[0].rpartition(":")[2] for line in nine] == [str(n) for n in range(1, 10)]
    many = refusal(written(tmp_path, '{"text": ""}\n' * 1000)).splitlines()
    assert len(many) == MAX_FAULTS_SHOWN + 1
    assert many[-1] == "… and more bad rows; the rest was not read"


def test_nothing_is_handed_out_behind_a_bad_row_unless_it_is_skipped(tmp_path: Path) -> None:
    path = written(tmp_path, lines({"text": "a"}, {"text": 1}, {"text": "b"}, "no object"))
    handed: list[Passage] = []
    with pytest.raises(ConfigError):
        handed.extend(Corpus(path).passages())
    assert handed == [Passage("a")]
    skipping = Corpus(path, on_bad_row="skip")
    assert [*skipping.passages()] == [Passage("a"), Passage("b")]
    assert (skipping.num_bad, len(skipping.faults), skipping.share_read) == (2, 2, 1.0)


def test_of_two_rows_with_one_id_the_first_is_kept(tmp_path: Path) -> None:
    path = written(tmp_path, lines({"id": 1, "text": "a"}, {"id": 1, "text": "b"}, {"id": 2, "text": "c"}))
    assert [passage.text for passage in read(path, on_bad_row="skip")] == ["a", "c"]


def test_a_file_of_bad_rows_only_is_refused_even_if_they_are_skipped(tmp_path: Path) -> None:
    message = refusal(written(tmp_path, "nope\n" * 12), on_bad_row="skip")
    assert "no row holds a passage; " in message and message.endswith("… and 2 more bad rows")


def test_a_line_too_long_to_hold_is_a_bad_row_and_the_next_is_read(tmp_path: Path) -> None:
    path = written(tmp_path, lines({"text": "a"}, {"text": "x" * (2 * MAX_LINE_BYTES)}, {"text": "b"}))
    assert f"corpus.jsonl:2: the line is longer than {MAX_LINE_BYTES} bytes" in refusal(path)
    assert [passage.text for passage in read(path, on_bad_row="skip")] == ["a", "b"]


CUT_OFF = gzip.compress(b'{"text": "a"}\n' * 9, mtime=0)[:-9]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("corpus.csv", b"", "a corpus ends in .jsonl, .ndjson, .jsonl.gz, .ndjson.gz, .parquet, not '.csv'"),
        ("corpus.jsonl.gz", b"no gzip", "corpus.jsonl.gz cannot be read: Not a gzipped file"),
        ("corpus.jsonl.gz", CUT_OFF, "cannot be read: Compressed file ended before"),
        ("corpus.parquet", b"no parquet at all", "corpus.parquet cannot be read: Parquet magic bytes not found"),
        ("corpus.parquet", b"", "corpus.parquet cannot be read: "),
    ],
)
def test_a_file_that_is_none_is_refused(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    assert message in refusal(written(tmp_path, content, name))


def test_a_missing_file_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.jsonl: there is no such file"):
        Corpus(tmp_path / "nowhere.jsonl")


# -- on the way to an index -------------------------------------------------------------------------------------------


def test_a_bad_corpus_leaves_no_index(tmp_path: Path) -> None:
    path = written(tmp_path, lines(*({"text": f"text {i}"} for i in range(3000)), {"text": ""}))
    with pytest.raises(ConfigError, match="jsonl:3001: column 'text' holds no text"):
        build_index(tmp_path / "index", Corpus(path).passages())
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_ids_and_titles_are_found_again(tmp_path: Path) -> None:
    path = written(tmp_path, lines({"id": "7", "contents": "Owl\nthe owl"}, {"id": "8", "contents": "Fox\nthe fox"}))
    build_index(tmp_path / "index", Corpus(path).passages())
    assert [hit.passage for hit in open_index(tmp_path / "index").search("fox", 3)] == BODIES[1:]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["jsonl", "jsonl.gz", "parquet"])
def test_a_long_corpus_is_never_held_whole(tmp_path: Path, kind: str) -> None:
    rows = [{"id": i, "text": f"passage {i} " + "of many words " * 20} for i in range(20_000)]
    path = _corpus(tmp_path, kind, rows)
    del rows
    shares: list[float] = []
    reading = Corpus(path)
    tracemalloc.start()
    try:
        shares.extend(reading.share_read for _ in reading.passages())
        assert tracemalloc.get_traced_memory()[1] < 3_500_000
    finally:
        tracemalloc.stop()
    assert len(shares) == 20_000
    assert shares == sorted(shares) and 0 <= shares[0] < 0.2 and reading.share_read == 1.0


def _corpus(folder: Path, kind: str, rows: Sequence[dict[str, Any]]) -> Path:
    if kind == "parquet":
        return tabled(folder, {name: [row[name] for row in rows] for name in rows[0]}, rows_a_group=2000)
    content = lines(*rows).encode()
    return written(folder, gzip.compress(content, 1) if kind.endswith("gz") else content, f"corpus.{kind}")
