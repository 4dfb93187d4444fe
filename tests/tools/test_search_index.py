"""Every promise of an index, for each backend; tantivy's where it is installed."""

import importlib.util
import json
import signal
import sqlite3
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramify.core.errors import ConfigError
from ramify.tools.passages import (
    MAX_QUERY_CHARS,
    MAX_QUERY_WORDS,
    MIN_LARGE,
    Index,
    Passage,
    query_words,
    telling_words,
    words_of,
)
from ramify.tools.search_index import Backend, build_index, open_index
from ramify.tools.sqlite_index import memory_index

BACKENDS: tuple[Backend, ...] = ("sqlite", *(("tantivy",) if importlib.util.find_spec("tantivy") else ()))
Built = Callable[[list[Passage]], Index]

FEW = [
    Passage("Paris is the capital of France", "Paris"),
    Passage("Rome is the capital of Italy", "Rome"),
    Passage("A café in Paris sells crêpes", "Food"),
    Passage("", "Only a title"),
    Passage("Rome and Paris and Rome", "Roman cities"),
]
ODD_QUERIES = [
    "",
    " ",
    "?!… — '\"*",
    "\x00",
    "paris\x00rome",
    '"paris',
    'paris" OR "rome',
    "paris AND rome NOT capital",
    "NEAR(paris rome, 5)",
    "title:paris",
    "{title text}: paris",
    "paris*",
    "^paris",
    "-paris +rome",
    "paris + rome",
    "'; DROP TABLE passages; --",
    "\ud800 paris",
    "\U0001f9ff 東京 パリ हिन्दी ﷺ",
    "e\u0301" * 1000,
    "(" * 10_000,
    "7" * 100_000,
    "paris " * 100_000,
    " ".join(f"w{i}" for i in range(5000)),
]


@pytest.fixture(params=["memory", *BACKENDS])
def built(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Built]:
    """Makes indexes of one kind."""
    made: list[Index] = []

    def build(passages: list[Passage]) -> Index:
        if request.param == "memory":
            made.append(memory_index(passages))
        else:
            path = tmp_path / f"index{len(made)}"
            assert build_index(path, passages, backend=request.param) == len(passages)
            made.append(open_index(path))
        return made[-1]

    yield build
    for index in made:
        index.close()


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> Backend:
    return request.param


def titles(index: Index, query: str, top_k: int = 3) -> list[str]:
    return [hit.passage.title for hit in index.search(query, top_k)]


def numbered(number: int, text: str = "the same words") -> list[Passage]:
    return [Passage(text, str(i)) for i in range(number)]


# -- words -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Who wrote 'Emma', 1815?", ["who", "wrote", "emma", "1815"]),
        ("snake_case and-dash", ["snake", "case", "and", "dash"]),
        ("CAFÉ cafe\u0301 café", ["cafe", "cafe", "cafe"]),
        ("東京タワー, がっこうx", ["東", "京", "タワー", "が", "っ", "こ", "う", "x"]),
        ("한국 Ångström ﬁne", ["한국", "angstrom", "fine"]),
        ("\x00\ud800 \u2028 …", []),
    ],
)
def test_a_word_is_a_run_of_letters_and_digits_or_one_sign_without_case_and_accents(
    text: str, words: list[str]
) -> None:
    assert words_of(text) == words


def test_a_query_is_its_first_different_words() -> None:
    assert query_words("b a B c a") == ["b", "a", "c"]
    assert query_words(" ".join(f"w{i}" for i in range(1000))) == [f"w{i}" for i in range(MAX_QUERY_WORDS)]
    assert query_words("x " * MAX_QUERY_CHARS + "y") == ["x"]


@given(st.text())
def test_words_are_their_own_words(text: str) -> None:
    words = words_of(text)
    assert words_of(" ".join(words)) == words


def test_common_words_are_asked_for_only_if_there_are_no_others() -> None:
    number = MIN_LARGE
    counts = {"the": number, "of": number // 2, "rare": number // 5}
    assert telling_words(["the", "rare", "of", "new"], lambda w: counts.get(w, 0), number) == ["rare", "new"]
    assert telling_words(["the", "of"], counts.__getitem__, number) == ["of"]
    assert telling_words([], counts.__getitem__, number) == []
    assert telling_words(["the", "of"], counts.__getitem__, number - 1) == ["the", "of"]


# -- searching ---------------------------------------------------------------------------------------------------------


def test_the_best_match_comes_first_and_only_matches_come(built: Built) -> None:
    index = built(FEW)
    assert index.num_passages == len(FEW)
    assert titles(index, "the capital of Italy") == ["Rome", "Paris"]
    assert titles(index, "cities rome", 1) == ["Roman cities"]
    assert titles(index, "berlin") == []
    scores = [hit.score for hit in index.search("rome capital", 5)]
    assert scores == sorted(scores, reverse=True)


def test_a_passage_comes_back_as_it_was(built: Built) -> None:
    odd = Passage("  Café\n\x00 'x' \u2028é zebra ", " Title\x00\t", "id \x00é")
    (hit,) = built([*FEW, odd]).search("zebra", 3)
    assert hit.passage == odd
    (hit,) = built([Passage("lone \ud800 surrogate", "\udfff")]).search("lone", 1)
    assert hit.passage == Passage("lone \ufffd surrogate", "\ufffd")


def test_scripts_without_spaces_are_searched_by_their_signs(built: Built) -> None:
    index = built([Passage("東京は日本の首都です", "東京"), Passage("北京是中国的首都", "北京"), Passage("서울 한국")])
    assert titles(index, "東京", 1) == ["東京"]
    assert titles(index, "中国", 1) == ["北京"]
    assert titles(index, "首都") == ["東京", "北京"] or titles(index, "首都") == ["北京", "東京"]


def test_titles_are_searched_and_case_and_accents_ignored(built: Built) -> None:
    index = built(FEW)
    assert titles(index, "TITLE") == ["Only a title"]
    assert titles(index, "crepes CAFE") == titles(index, "CRÊPES cafe\u0301") == ["Food"]


@pytest.mark.parametrize("number", [5, 3000])
def test_equal_scores_come_in_the_order_they_were_added(built: Built, number: int) -> None:
    index = built(numbered(number))
    assert titles(index, "same", 4) == ["0", "1", "2", "3"]
    assert titles(index, "words the", 4) == ["0", "1", "2", "3"]
    assert titles(index, "same", number) == [str(i) for i in range(number)]


def test_no_query_is_syntax(built: Built) -> None:
    index = built(FEW)
    for query in ODD_QUERIES:
        is_found = any(word in {"paris", "rome", "capital"} for word in query_words(query))
        assert bool(index.search(query, 3)) == is_found, f"{query[:80]!r}"


@given(query=st.text(st.characters()), top_k=st.integers(1, 9))
def test_any_text_is_a_query_that_finds_what_holds_one_of_its_words(query: str, top_k: int) -> None:
    words = set(query_words(query))
    holding = [p for p in FEW if words & set(words_of(f"{p.title} {p.text}"))]
    found = [hit.passage for hit in INDEX_OF_FEW.search(query, top_k)]
    assert len(found) == min(top_k, len(holding))
    assert all(p in holding for p in found)


INDEX_OF_FEW = memory_index(FEW)


def test_the_order_of_a_querys_words_changes_nothing(built: Built) -> None:
    index = built(FEW)
    assert len({tuple(titles(index, " ".join(q), 5)) for q in permutations(["rome", "paris", "capital", "the"])}) == 1


def test_common_words_neither_find_nor_rank_in_a_large_index_on_disk(tmp_path: Path, backend: Backend) -> None:
    passages = [Passage(f"the {'old' if i % 2 else 'new'} house number{i}") for i in range(MIN_LARGE)]
    build_index(tmp_path / "index", passages, backend=backend)
    index = open_index(tmp_path / "index")
    assert [hit.passage for hit in index.search("the old house number7", 3)] == [passages[7]]
    assert [hit.passage for hit in index.search("the house old", 2)] == [passages[1], passages[3]]
    assert len(memory_index(passages).search("the house number7", 3)) == 3


def test_threads_may_ask_at_once_and_get_the_same_answers(built: Built) -> None:
    index = built([Passage(f"word{i % 7} word{i % 5} number{i}", str(i)) for i in range(500)])
    queries = [f"word{i % 7} number{i}" for i in range(100)]
    alone = [titles(index, query) for query in queries]
    answers: list[list[list[str]]] = []
    threads = [
        threading.Thread(target=lambda: answers.append([titles(index, query) for query in queries])) for _ in range(12)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [alone] * 12


def test_a_closed_index_may_be_closed_again_and_in_sqlite_no_longer_asked(built: Built) -> None:
    index = memory_index(FEW)
    index.close()
    index.close()
    with pytest.raises(sqlite3.ProgrammingError):
        index.search("paris", 1)
    built(FEW).close()


# -- on disk -----------------------------------------------------------------------------------------------------------


def test_only_a_small_index_in_memory_answers_at_once(tmp_path: Path, backend: Backend) -> None:
    build_index(tmp_path / "index", FEW, backend=backend)
    assert open_index(tmp_path / "index").is_blocking
    assert not memory_index(FEW).is_blocking
    assert memory_index(numbered(MIN_LARGE)).is_blocking


def test_two_builds_of_the_same_passages_answer_alike(tmp_path: Path, backend: Backend) -> None:
    passages = [Passage(f"word{i % 7} word{i % 5} word{i % 3}", str(i)) for i in range(2500)]
    for name in ("a", "b"):
        build_index(tmp_path / name, passages, backend=backend)
    one, other = open_index(tmp_path / "a"), open_index(tmp_path / "b")
    for query in ("word1", "word2 word4", "word6 word0 word1"):
        assert one.search(query, 9) == other.search(query, 9)


def test_a_path_may_hold_any_character_and_folders_are_made(tmp_path: Path, backend: Backend) -> None:
    path = tmp_path / "a new folder" / "what? 100% #1 é&mode=rw"
    build_index(path, FEW, backend=backend)
    assert titles(open_index(str(path)), "berlin paris", 1) == ["Paris"]
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_an_open_index_is_not_changed_by_a_new_one_in_its_place(tmp_path: Path) -> None:
    path = tmp_path / "index"
    build_index(path, FEW)
    index = open_index(path)
    path.unlink()
    build_index(path, numbered(3, "paris"))
    assert titles(index, "paris", 1) == ["Paris"]
    assert titles(open_index(path), "paris", 1) == ["0"]


def test_a_path_that_is_taken_is_left_alone(tmp_path: Path, backend: Backend) -> None:
    path = tmp_path / "mine"
    path.write_text("precious")
    with pytest.raises(ConfigError, match=r"'.*mine' already exists; remove it or name another path"):
        build_index(path, FEW, backend=backend)
    assert path.read_text() == "precious"


def test_an_unknown_backend_is_refused_with_the_nearest(tmp_path: Path) -> None:
    name: Any = "sqlight"
    with pytest.raises(ConfigError, match="backend = 'sqlight': no such backend; did you mean 'sqlite'"):
        build_index(tmp_path / "index", FEW, backend=name)


def test_a_build_without_passages_or_that_fails_leaves_nothing(tmp_path: Path, backend: Backend) -> None:
    def failing() -> Iterator[Passage]:
        yield from FEW
        raise OSError("the corpus is gone")

    with pytest.raises(ConfigError, match="no passages for the search index"):
        build_index(tmp_path / "index", [], backend=backend)
    with pytest.raises(OSError, match="the corpus is gone"):
        build_index(tmp_path / "index", failing(), backend=backend)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_build_holds_a_part_of_the_passages_at_a_time(tmp_path: Path, backend: Backend) -> None:
    def passages(number: int) -> Iterator[Passage]:
        return (Passage(f"passage {i} " + "of many words " * 20, str(i)) for i in range(number))

    build_index(tmp_path / "warm", passages(10), backend=backend)
    tracemalloc.start()
    try:
        build_index(tmp_path / "index", passages(10_000), backend=backend)
        assert tracemalloc.get_traced_memory()[1] < 3_000_000
    finally:
        tracemalloc.stop()


KILLED = """
import os, signal, sys
from pathlib import Path
from ramify.tools.passages import Passage
from ramify.tools.search_index import build_index

def passages():
    yield from (Passage(f"text {i}") for i in range(3000))
    os.kill(os.getpid(), signal.SIGKILL)

build_index(Path(sys.argv[1]), passages(), backend=sys.argv[2])
"""


def test_what_a_killed_build_left_is_removed_by_the_next(tmp_path: Path, backend: Backend) -> None:
    path = tmp_path / "index"
    assert subprocess.run([sys.executable, "-c", KILLED, path, backend], check=False).returncode == -signal.SIGKILL
    (left,) = tmp_path.iterdir()
    another = tmp_path / left.name.replace(".unfinished", "").rpartition(".")[0]
    others = [another.with_name(f"{another.name}.1.unfinished"), another.with_name(f"{another.name}.x.unfinished")]
    for other in others:
        other.write_text("a build of somebody who is at it, and a file of another kind")
    build_index(path, FEW, backend=backend)
    assert open_index(path).num_passages == len(FEW)
    assert {file.name for file in tmp_path.iterdir()} == {path.name, *(other.name for other in others)}


def test_an_index_that_came_while_one_was_built_is_not_written_over(tmp_path: Path, backend: Backend) -> None:
    path = tmp_path / "index"

    def passages() -> Iterator[Passage]:
        yield from FEW
        path.write_text("precious")

    with pytest.raises(ConfigError, match="already exists"):
        build_index(path, passages(), backend=backend)
    assert path.read_text() == "precious"
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_a_place_that_cannot_be_written_is_an_error_that_says_so(backend: Backend) -> None:
    for path in ("/proc/index", "/proc/folder/index", "/dev/null/folder/index"):
        with pytest.raises(ConfigError, match=f"'{path}' cannot be written: |'/proc/.index.*unfinished' cannot be wr"):
            build_index(path, FEW, backend=backend)


@pytest.mark.parametrize(
    ("content", "why"),
    [(b"", "it is something else"), (b"no index at all\n" * 100, "file is not a database")],
    ids=["empty", "text"],
)
def test_a_file_that_is_no_index_is_refused(tmp_path: Path, content: bytes, why: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=f"'.*file' is no search index that can be used: {why}; build it again"):
        open_index(path)


def test_another_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.db"
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE passages (text)")
    database.close()
    with pytest.raises(ConfigError, match="it is something else"):
        open_index(path)


@pytest.mark.parametrize(
    ("statement", "why"),
    [
        ("PRAGMA user_version = 7", "it has format 7, and this version of ramify reads 3"),
        ("DELETE FROM meta", "it is empty"),
        ("UPDATE meta SET value = 0", "it is empty"),
        ("UPDATE meta SET value = 9", "it holds 5 of its 9 passages"),
        ("DROP TABLE common", "no such table: common"),
    ],
)
def test_a_file_of_another_version_or_without_its_passages_is_refused(tmp_path: Path, statement: str, why: str) -> None:
    path = tmp_path / "index"
    build_index(path, FEW)
    with sqlite3.connect(path) as database:
        database.execute(statement)
    database.close()
    with pytest.raises(ConfigError, match=why):
        open_index(path)


def test_a_file_that_was_cut_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "index"
    build_index(path, numbered(2000))
    path.write_bytes(path.read_bytes()[:-8192])
    with pytest.raises(ConfigError, match="is no search index that can be used"):
        open_index(path)


def test_a_missing_index_is_refused_with_what_makes_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"there is no search index '.*nowhere'; make one: ramify index"):
        open_index(tmp_path / "nowhere")


# -- tantivy alone -----------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    pytest.importorskip("tantivy")
    build_index(tmp_path / "index", FEW, backend="tantivy")
    return tmp_path / "index"


@pytest.mark.parametrize(
    ("meta", "why"),
    [
        (None, "there is no ramify.json in it"),
        ("{", "JSON|Expecting"),
        ("{}", "'format'"),
        ('{"format": 7, "num_passages": 5}', "it has format 7, and this version of ramify reads 3"),
        ('{"format": 3, "num_passages": 9}', "it holds 5 of its 9 passages"),
        ("[]", "indices"),
    ],
)
def test_a_folder_that_is_no_index_of_this_version_is_refused(folder: Path, meta: str | None, why: str) -> None:
    if meta is None:
        (folder / "ramify.json").unlink()
    else:
        (folder / "ramify.json").write_text(meta)
    with pytest.raises(ConfigError, match=f"'.*index' is no search index that can be used: .*({why}).*; build it"):
        open_index(folder)


def test_a_folder_that_lost_tantivys_files_is_refused(folder: Path) -> None:
    for file in folder.iterdir():
        if file.name != "ramify.json":
            file.unlink()
    with pytest.raises(ConfigError, match="is no search index that can be used"):
        open_index(folder)
    assert json.loads((folder / "ramify.json").read_text())["num_passages"] == len(FEW)


def test_without_tantivy_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tantivy", None)
    monkeypatch.delitem(sys.modules, "ramify.tools.tantivy_index", raising=False)
    with pytest.raises(ConfigError, match=r"pip install 'ramify\[search\]'"):
        build_index(tmp_path / "index", FEW, backend="tantivy")
    (tmp_path / "folder").mkdir()
    with pytest.raises(ConfigError, match=r"pip install 'ramify\[search\]'"):
        open_index(tmp_path / "folder")


@pytest.mark.slow
def test_ties_are_settled_across_segments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tantivy_index = pytest.importorskip("ramify.tools.tantivy_index", exc_type=ConfigError)
    monkeypatch.setattr(tantivy_index, "HEAP_BYTES", 15_000_000)
    number = 3000
    passages = (Passage("same " + " ".join(f"{i}x{k}" for k in range(100)), str(i)) for i in range(number))
    build_index(tmp_path / "index", passages, backend="tantivy")
    index = open_index(tmp_path / "index")
    assert sum(file.suffix == ".store" for file in (tmp_path / "index").iterdir()) > 1
    assert titles(index, "same", 5) == ["0", "1", "2", "3", "4"]
    assert titles(index, f"same {number - 1}x7", 3) == [str(number - 1)]


def test_both_backends_find_the_same_passages(tmp_path: Path) -> None:
    pytest.importorskip("tantivy")
    passages = [Passage(" ".join(f"w{(i * k) % 97}" for k in range(1, 9)), str(i)) for i in range(1500)]
    indexes = [memory_index(passages)]
    for backend in BACKENDS:
        build_index(tmp_path / backend, passages, backend=backend)
        indexes.append(open_index(tmp_path / backend))
    for query in ("w1 w2", "w5", "w96 w3 w12", "w0"):
        found = [titles(index, query, 5) for index in indexes]
        assert found[0] == found[1] == found[2], query
