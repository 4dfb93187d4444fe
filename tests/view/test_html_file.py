"""A page is a new file that holds what was asked for, or it is refused before anything is written."""

import base64
import gzip
import json
import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.view.followed import begun, put
from tests.view.test_documents import foreign, opened, path_of, run_of

from ramify.core.errors import ConfigError, StoreError
from ramify.store.store import FolderStore
from ramify.view import html_file
from ramify.view.documents import Documents
from ramify.view.html_file import html_page, write_html
from ramify.view.page import live_page

BLOCK = re.compile(r'<script type="application/gzip" data-document="([^"]+)">([^<]*)</script>')


def in_page(text: str) -> dict[str, Any]:
    """The documents of a page by name."""
    return {name: json.loads(gzip.decompress(base64.b64decode(packed))) for name, packed in BLOCK.findall(text)}


def trees_in(text: str) -> list[str]:
    return [name for name in in_page(text) if re.fullmatch(r"run/\d+/tree/\d+", name)]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of four trees of 3 nodes each."""
    return run_of(tmp_path / "run", *(path_of(number, f"word {number}") for number in range(4)))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[FolderStore]:
    """A run without trees, which is being written."""
    with closing(begun(tmp_path / "run")) as store:
        yield store


def test_a_page_holds_every_document_as_it_is_served(run: Path):
    documents = opened(run)
    found = in_page(html_page(documents))
    assert found.pop("index") == documents.index(is_live=False)
    names = [*(f"run/0/tree/{number}{end}" for number in range(4) for end in ("", "/tokens/0")), "run/0"]
    assert list(found) == names
    for name in names:
        assert found[name] == json.loads(json.dumps(documents.get(name)))


def test_the_rows_of_all_trees_are_computed_for_a_page(run: Path):
    whole = in_page(html_page(Documents.open([run])))["run/0"]
    assert (whole["filled"], whole["num_closed"], whole["trees"]["best"]) == (4, 4, [1.0] * 4)


def test_a_page_is_a_new_file_and_its_size_is_told(run: Path, tmp_path: Path):
    path = tmp_path / "page.html"
    assert write_html(Documents.open([run]), path) == path.stat().st_size
    before = path.read_bytes()
    with pytest.raises(ConfigError, match=r"cannot write .*page\.html: File exists; name a new file"):
        write_html(Documents.open([run]), path)
    assert path.read_bytes() == before
    with pytest.raises(ConfigError, match="No such file or directory"):
        write_html(Documents.open([run]), tmp_path / "missing" / "page.html")
    (tmp_path / "run.html").symlink_to(tmp_path / "elsewhere.html")
    with pytest.raises(ConfigError, match=r"cannot write .*run\.html"):
        write_html(Documents.open([run]), tmp_path / "run.html")
    assert not (tmp_path / "elsewhere.html").exists()


@pytest.mark.parametrize("name", ["page", "page.svg", "page.html.gz", ".html"])
def test_a_page_has_the_name_of_one(run: Path, tmp_path: Path, name: str):
    with pytest.raises(ConfigError, match=r"the name of a page ends in \.html"):
        write_html(Documents.open([run]), tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    assert write_html(Documents.open([run]), tmp_path / "page.HTM")


def test_only_trees_that_were_chosen_are_put_in(run: Path):
    text = html_page(Documents.open([run]), trees=[3, 1])
    assert trees_in(text) == ["run/0/tree/1", "run/0/tree/3"]
    assert in_page(text)["run/0"]["trees"]["tree"] == [0, 1, 2, 3]
    assert "opens" not in in_page(text)["index"]
    assert in_page(html_page(Documents.open([run]), trees=[2]))["index"]["opens"] == 2


def test_a_chosen_tree_that_is_in_no_run_is_refused(run: Path, tmp_path: Path):
    other = run_of(tmp_path / "other", path_of(7))
    assert trees_in(html_page(Documents.open([run, other]), trees=[1, 7])) == ["run/0/tree/1", "run/1/tree/7"]
    for numbers, wrong in (([1, 9], "9"), ([-1], "-1")):
        with pytest.raises(ConfigError, match=f"there is no tree {wrong}; `ramify show RUN` lists"):
            html_page(Documents.open([run]), trees=numbers)


def test_trees_are_put_in_until_there_are_so_many_nodes(run: Path):
    for most, trees in ((1, 1), (3, 1), (4, 2), (6, 2), (100, 4)):
        text = html_page(Documents.open([run]), max_nodes=most)
        assert len(trees_in(text)) == trees, most
        assert len(in_page(text)["run/0"]["trees"]["tree"]) == 4


def test_a_page_without_tokens_has_all_trees(run: Path):
    text = html_page(Documents.open([run]), has_tokens=False)
    assert not [name for name in in_page(text) if "/tokens/" in name]
    assert len(trees_in(text)) == 4


def test_a_page_that_is_too_large_is_refused_with_what_makes_it_smaller(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    small = len(html_page(Documents.open([run]), has_tokens=False))
    monkeypatch.setattr(html_file, "MAX_BYTES", small)
    with pytest.raises(
        ConfigError, match=r"larger than .* MiB; put less in: --tree N .* --max-nodes N, or --no-tokens"
    ):
        write_html(Documents.open([run]), tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()
    assert write_html(Documents.open([run]), tmp_path / "page.html", has_tokens=False)


def test_a_page_that_is_too_large_is_refused_before_everything_is_read(run: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(html_file, "MAX_BYTES", 10)
    documents = opened(run)
    with pytest.raises(ConfigError, match="larger than"):
        html_page(documents)
    (run / "journal" / "000000.jsonl").unlink()
    with pytest.raises(StoreError):  # A tree that was replayed for the page would still be known.
        documents.tokens(0, 0, 0)


def test_a_run_that_grows_is_written_as_it_stands(store: FolderStore):
    put(store, path_of(0, is_closed=False))
    found = in_page(html_page(Documents.open([store.path])))
    assert (found["run/0"]["is_growing"], found["run/0/tree/0"]["is_open"]) == (True, True)
    assert found["index"]["is_live"] is False


def test_a_tree_that_cannot_be_replayed_says_why(tmp_path: Path):
    broken = [record for record in path_of(0) if type(record).__name__ != "GrownRecord"]
    found = in_page(html_page(Documents.open([run_of(tmp_path / "run", broken, path_of(1))])))
    assert found["run/0/tree/0"]["error"].startswith("tree 0: the record says number of steps")
    assert "run/0/tree/0/tokens/0" not in found
    assert "run/0/tree/1/tokens/0" in found
    assert found["run/0"]["faults"][0].startswith("tree 0: the record says")


@pytest.mark.slow
def test_runs_without_trees_and_files_of_others_are_pages(store: FolderStore, tmp_path: Path):
    text = html_page(Documents.open([store.path, foreign(tmp_path / "7.jsonl")]))
    assert list(in_page(text)) == ["index", "run/1/tree/0", "run/1/tree/0/tokens/0", "run/0", "run/1"]
    assert len(text) > len(live_page()[0])


def test_the_same_run_gives_the_same_page(run: Path):
    assert html_page(Documents.open([run])) == html_page(Documents.open([run]))
