"""Documents are found by name, trees are replayed once while they stay as they are, and texts are searched."""

import json
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.store.growths import Live, answer, turn
from tests.view.followed import begun, put

from ramify.core.command import Grow
from ramify.core.errors import ConfigError, StoreError
from ramify.core.tree import ROOT
from ramify.store.records import RunRecord
from ramify.store.store import FolderStore
from ramify.version import __version__
from ramify.view import documents as module
from ramify.view.documents import EXCERPT, KEPT, MAX_RUNS, Documents


def path_of(number: int, *texts: str, is_closed: bool = True) -> list[RunRecord]:
    """The records of a tree of one path: turns that say `texts`, then an answer."""
    live = Live(number)
    (command,) = live.ask(Grow(ROOT))
    for text in texts:
        live.grow(command, turn(text))
    live.grow(command, answer())
    if is_closed:
        live.end(command)
        live.shut()
    return [*live.records]


def run_of(path: Path, *trees: list[RunRecord]) -> Path:
    with closing(begun(path)) as store:
        for records in trees:
            put(store, records)
    return path


def opened(*paths: Path) -> Documents:
    """The documents of some runs, which were looked at once."""
    documents = Documents.open(paths)
    list(documents.look())
    return documents


@pytest.fixture
def store(tmp_path: Path) -> Iterator[FolderStore]:
    """A run without trees, which is being written."""
    with closing(begun(tmp_path / "run")) as store:
        yield store


def foreign(path: Path) -> Path:
    row = {"input": "1+1?", "output": "it is two", "gts": "2", "score": 1.0, "step": 7}
    path.write_text(json.dumps(row) + "\n", "utf-8")
    return path


# -- runs -------------------------------------------------------------------------------------------------------------


def test_the_index_lists_runs_in_the_order_in_which_they_were_named(tmp_path: Path):
    paths = [run_of(tmp_path / name) for name in ("b", "a")]
    index = opened(*paths).get("index")
    assert index == {
        "version": __version__,
        "is_live": True,
        "runs": [{"id": 0, "name": str(paths[0])}, {"id": 1, "name": str(paths[1])}],
    }
    assert opened(*paths).index(is_live=False)["is_live"] is False


def test_a_folder_stands_for_the_runs_in_it_and_in_its_folders(tmp_path: Path):
    for name in ("a", "more/b", "more/deep/c"):
        run_of(tmp_path / name)
    (tmp_path / "notes.txt").write_text("no run")
    names = [run.name for run in Documents.open([tmp_path]).runs]
    assert names == [str(tmp_path / "a"), str(tmp_path / "more" / "b")]
    assert len(Documents.open([tmp_path, tmp_path / "more" / "deep"]).runs) == 3


def test_a_file_of_another_project_is_a_run(tmp_path: Path):
    documents = opened(run_of(tmp_path / "run", path_of(0)), foreign(tmp_path / "7.jsonl"))
    assert [run["name"] for run in documents.index(is_live=True)["runs"]] == [
        str(tmp_path / "run"),
        str(tmp_path / "7.jsonl"),
    ]
    run, tree = documents.get("run/1"), documents.get("run/1/tree/0")
    assert (run["title"], run["num_trees"], run["path"]) == ("verl rollouts", 1, str(tmp_path / "7.jsonl"))
    assert (tree["question"], tree["facts"], tree["events"], tree["rows"]) == ("1+1?", {"step": 7, "gts": "2"}, [], [])
    assert tree["rows_refused"] == "no training rows are known of this tree"
    assert [hit["node"] for hit in documents.search(1, "IS TWO")["hits"]] == [1]
    assert (list(documents.look()), documents.fill(1.0)) == ([], [0])


@pytest.mark.parametrize("make", ["missing", "file", "empty", "torn"])
def test_a_path_that_is_nothing_is_refused(tmp_path: Path, make: str):
    path = tmp_path / make
    if make == "file":
        path.write_text("hello")
    if make == "empty":
        path.mkdir()
    if make == "torn":
        path.write_text('{"input": "1+')
    with pytest.raises(ConfigError, match=f"{make} (is no run and has no runs in it|does not exist)"):
        Documents.open([path])


def test_a_damaged_file_of_another_project_is_refused_by_its_line(tmp_path: Path):
    path = foreign(tmp_path / "7.jsonl")
    path.write_text(path.read_text() + "{broken\n" + path.read_text())
    with pytest.raises(StoreError, match=r"7\.jsonl:2: this is no JSON"):
        Documents.open([path])


def test_more_runs_than_a_page_can_list_are_refused(tmp_path: Path):
    for number in range(MAX_RUNS + 1):
        (tmp_path / f"{number}" / "journal").mkdir(parents=True)
    with pytest.raises(ConfigError, match=f"{MAX_RUNS + 1} runs are too many .* at most {MAX_RUNS}"):
        Documents.open([tmp_path])
    shutil.rmtree(tmp_path / "0")
    assert len(Documents.open([tmp_path]).runs) == MAX_RUNS


def test_a_run_that_cannot_be_read_is_listed_with_its_fault(tmp_path: Path):
    (tmp_path / "odd" / "journal").mkdir(parents=True)
    documents = opened(tmp_path / "odd", run_of(tmp_path / "run", path_of(0)))
    assert documents.get("run/0")["faults"]
    assert documents.get("run/0")["trees"]["tree"] == []
    assert documents.search(0, "a") == {"hits": [], "note": ""}
    assert documents.get("run/1")["faults"] == []


# -- names ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "", "Index", "run", "run/", "run/1", "run/-1", "run/0/", "run/0/tree", "run/0/tree/1", "run/0/tree/-1",
        "run/0/tree/0/tokens/1", "run/0/tree/0/tokens/-1", "run/0/tree/0/tokens", "run/00000000000", "run/0\n",
        "run/\u0661", "../run/0", "run/0/tree/0/../../../etc/passwd",
    ],
)  # fmt: skip
def test_a_name_that_is_not_there_is_no_document(tmp_path: Path, name: str):
    documents = opened(run_of(tmp_path / "run", path_of(0)))
    with pytest.raises(KeyError):
        documents.get(name)


def test_every_name_of_a_run_is_a_document(tmp_path: Path):
    documents = opened(run_of(tmp_path / "run", path_of(0)))
    for name in ("index", "run/0", "run/0/tree/0", "run/0/tree/0/tokens/0"):
        assert json.loads(json.dumps(documents.get(name), allow_nan=False))


# -- replays that are kept --------------------------------------------------------------------------------------------


def test_a_tree_that_was_replayed_is_kept_for_its_tokens(tmp_path: Path):
    documents = opened(run_of(tmp_path / "run", *(path_of(number) for number in range(KEPT + 1))))
    for number in range(KEPT + 1):
        documents.get(f"run/0/tree/{number}")
    shutil.rmtree(tmp_path / "run" / "journal")
    for number in range(1, KEPT + 1):
        assert documents.get(f"run/0/tree/{number}/tokens/0")["first"] == 0
    with pytest.raises(StoreError):
        documents.get("run/0/tree/0/tokens/0")


def test_a_tree_that_grows_is_replayed_again(store: FolderStore):
    documents = Documents.open([store.path])
    live = Live(0)

    def seen() -> tuple[int, int, bool, int]:
        put(store, live.records[told[0] :])
        told[0] = len(live.records)
        assert [(run, trees) for run, trees in documents.look() if trees] == [(0, {0})]
        tree, tokens = documents.get("run/0/tree/0"), documents.get("run/0/tree/0/tokens/0")
        assert len(tree["nodes"]["parent"]) == len(tokens["nodes"])
        return len(tree["nodes"]["parent"]), len(tree["events"]), tree["is_open"], len(tree["pending"])

    told = [0]
    assert seen() == (1, 0, True, 0)
    (command,) = live.ask(Grow(ROOT))
    assert seen() == (1, 1, True, 1)
    live.grow(command, answer())
    assert seen() == (1, 1, True, 1)
    live.end(command)
    assert seen() == (2, 2, True, 0)
    live.shut()
    assert seen() == (2, 2, False, 0)
    assert documents.get("run/0/tree/0")["rows_refused"] == ""


def test_a_look_tells_which_trees_changed_and_what_else_did(store: FolderStore):
    documents = Documents.open([store.path])
    assert list(documents.look()) == [(0, set())]
    assert list(documents.look()) == []
    put(store, path_of(0))
    assert list(documents.look()) == [(0, {0})]
    assert documents.fill(60.0) == [0]
    assert documents.fill(60.0) == []
    store.close()
    assert list(documents.look()) == [(0, set())]
    assert documents.get("run/0")["is_growing"] is False


# -- searching --------------------------------------------------------------------------------------------------------


def found(documents: Documents, text: str) -> list[tuple[int, int]]:
    return [(hit["tree"], hit["node"]) for hit in documents.search(0, text)["hits"]]


@pytest.fixture
def searched(tmp_path: Path) -> Documents:
    open_tree = path_of(2, "not delivered", is_closed=False)
    return opened(run_of(tmp_path / "run", path_of(0, "Red.*", "blue"), path_of(1, "(red", "Grün"), open_tree))


def test_plain_words_are_found_whatever_their_case(searched: Documents):
    assert found(searched, "RED") == [(0, 1), (1, 1)]
    assert found(searched, "red.*") == [(0, 1)]
    assert found(searched, "(red") == [(1, 1)]
    assert found(searched, "GRÜN") == [(1, 2)]
    assert found(searched, "nowhere") == []
    assert found(searched, "problem 2") == [(2, 0)]


def test_a_text_between_slashes_is_a_regular_expression(searched: Documents):
    assert found(searched, r"/calc>\W?red/") == [(0, 1), (1, 1)]
    assert found(searched, "/^problem [12]/") == [(1, 0), (2, 0)]
    assert found(searched, "//") == []
    assert found(searched, "/") == [(0, 1), (0, 2), (0, 3), (1, 1), (1, 2), (1, 3)]


@pytest.mark.parametrize("text", ["/(/", "/[/", "/a{2,1}/", "/(?P<a>x)(?P<a>y)/", f"/{'(' * 5000}{')' * 5000}/"])
def test_what_is_no_regular_expression_is_refused(searched: Documents, text: str):
    with pytest.raises(ConfigError, match="is no regular expression"):
        searched.search(0, text)


def test_an_excerpt_is_what_stands_around_the_place(tmp_path: Path):
    before, behind = EXCERPT
    documents = opened(run_of(tmp_path / "run", path_of(0, "a" * 500 + "needle" + "b" * 500, "needle")))
    first, second = [hit["excerpt"] for hit in documents.search(0, "needle")["hits"]]
    assert first == "a" * before + "needle" + "b" * (behind - len("needle"))
    assert second.startswith("<calc>needle</calc>")


def test_a_search_ends_when_it_has_found_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    documents = opened(run_of(tmp_path / "run", *(path_of(number, "word", "word") for number in range(4))))
    monkeypatch.setattr(module, "MAX_HITS", 3)
    said: dict[str, Any] = documents.search(0, "word")
    assert [(hit["tree"], hit["node"]) for hit in said["hits"]] == [(0, 1), (0, 2), (1, 1)]
    assert said["note"] == "the first 3, up to tree 1"


def test_a_tree_that_cannot_be_replayed_is_told_by_a_search_of_the_others(tmp_path: Path):
    broken = [record for record in path_of(0, "word") if type(record).__name__ != "GrownRecord"]
    documents = opened(run_of(tmp_path / "run", broken, path_of(1, "word")))
    assert found(documents, "word") == [(1, 1)]
    assert documents.search(0, "word")["note"].startswith("1 trees were not searched: tree 0: the record says")


def test_a_tree_that_cannot_be_replayed_says_why(tmp_path: Path):
    broken = [record for record in path_of(0) if type(record).__name__ != "GrownRecord"]
    documents = opened(run_of(tmp_path / "run", broken))
    why = "tree 0: the record says number of steps of command 0 1, and the replay comes to 0"
    assert documents.get("run/0/tree/0") == {"error": why}
    with pytest.raises(StoreError, match="tree 0"):
        documents.tree(0, 0)
    with pytest.raises(StoreError, match="tree 0"):
        documents.get("run/0/tree/0/tokens/0")
