"""In a notebook, trees and runs show themselves as the page of the viewer, in a frame that is shut in and bounded."""

import json
import re
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from tests.store.growths import CODEC, sampled
from tests.view.test_documents import path_of, run_of
from tests.view.test_html_file import in_page, trees_in
from tests.view.test_tree_document import check_training

from ramify.core.command import Grow
from ramify.core.problem import Problem
from ramify.core.tree import ROOT, Step, Tree
from ramify.runner.library import Rollout, rollout_sync
from ramify.runner.saved import Saved
from ramify.view import html_file, notebook
from ramify.view.notebook import frame_of

HOSTILE = '</iframe><script>top.hacked=1</script>"\' onload="top.hacked=1" &quot; \u202e'


class Elements(HTMLParser):
    """The elements of a text, with their attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def page_in(text: str | None) -> str:
    """The page in a frame, which must be the only element."""
    assert text is not None
    elements = Elements()
    elements.feed(text)
    ((tag, attributes),) = elements.found
    assert tag == "iframe"
    assert attributes.keys() == {"sandbox", "style", "srcdoc"}
    assert attributes["sandbox"] == "allow-scripts allow-downloads"
    assert attributes["srcdoc"]
    return attributes["srcdoc"]


def tree_of(*texts: str, uid: str = "uid", question: str = "q?") -> Tree:
    """A tree with a child of the root for each text."""
    tree = Tree(Problem(uid, question, secret={"gold": "GOLD"}), CODEC, [], seed=1)
    for number, text in enumerate(texts):
        place = tree.begin(number, Grow(ROOT))
        assert place is not None
        tree.add(Step((sampled(text),), "answer"), place)
        tree.end(number)
    return tree


@pytest.fixture(scope="module")
def grown() -> Rollout:
    return rollout_sync(preset="offline", prompts=3, seed=1, limits__decode=300)


# -- what is in a frame -----------------------------------------------------------------------------------------------


def test_a_tree_shows_itself():
    found = in_page(page_in(tree_of("one", "two")._repr_html_()))
    assert list(found) == ["index", "run/0/tree/0", "run/0/tree/0/tokens/0", "run/0"]
    assert found["index"]["opens"] == 0
    assert found["index"]["is_live"] is False
    assert found["run/0/tree/0"]["nodes"]["label"] == ["q?", "one", "two"]
    assert found["run/0/tree/0"]["rows_refused"]


def test_a_rollout_shows_all_trees_with_their_advantages(grown: Rollout):
    text = page_in(grown._repr_html_())
    assert trees_in(text) == ["run/0/tree/0", "run/0/tree/1", "run/0/tree/2"]
    found = in_page(text)
    trained = [tree for tree in grown.trees if any(row.uid == tree.problem.uid for row in grown.rows())]
    assert trained
    for tree in trained:
        rows = [row for row in grown.rows() if row.uid == tree.problem.uid]
        check_training(found[f"run/0/tree/{grown.trees.index(tree)}"], tree, rows)


def test_a_run_folder_shows_its_table(tmp_path: Path):
    saved = Saved.open(run_of(tmp_path / "run", path_of(0), path_of(1)))
    found = in_page(page_in(saved._repr_html_()))
    assert found["run/0"]["name"] == str(tmp_path / "run")
    assert found["run/0"]["trees"]["tree"] == [0, 1]
    assert "run/0/tree/1/tokens/0" in found
    assert "opens" not in found["index"]


def test_a_run_folder_that_is_gone_says_so(tmp_path: Path):
    saved = Saved.open(run_of(tmp_path / "run", path_of(0)))
    (tmp_path / "run" / "config.toml").unlink()
    assert in_page(page_in(saved._repr_html_()))["run/0"]["faults"]


def test_a_tree_that_still_grows_shows_itself():
    tree = tree_of("one")
    tree.begin(1, Grow(ROOT))
    assert len(in_page(page_in(tree._repr_html_()))["run/0/tree/0"]["nodes"]["parent"]) == 2


# -- what cannot get out ----------------------------------------------------------------------------------------------


def test_no_text_gets_out_of_the_frame():
    text = frame_of(tree_of(HOSTILE, uid=HOSTILE, question=HOSTILE))
    inner = page_in(text)
    assert text.count("<") == 2
    assert HOSTILE not in unescape(text)
    assert in_page(inner)["run/0/tree/0"]["question"] == HOSTILE
    assert "default-src 'none'" in inner
    assert "connect-src 'none'" in inner


def test_no_gold_answer_is_in_a_frame():
    assert "GOLD" not in json.dumps(in_page(page_in(frame_of(tree_of("one")))))


def test_a_text_that_is_no_unicode_is_shown():
    """A tree in memory may hold lone surrogates, as Python makes them of file names and of bad JSON."""
    found = in_page(page_in(frame_of(tree_of("one", question="a\ud800b", uid="\udfff"))))
    assert found["run/0/tree/0"]["question"] == "a\ud800b"


# -- what is bounded --------------------------------------------------------------------------------------------------


def test_trees_beyond_the_bound_stand_in_the_table_only(grown: Rollout, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(notebook, "MAX_NODES", 1)
    text = page_in(frame_of(grown))
    assert trees_in(text) == ["run/0/tree/0"]
    assert in_page(text)["run/0"]["trees"]["tree"] == [0, 1, 2]


def test_tokens_are_left_out_of_a_frame_that_would_be_too_large(grown: Rollout, monkeypatch: pytest.MonkeyPatch):
    whole = page_in(frame_of(grown))
    monkeypatch.setattr(html_file, "MAX_BYTES", len(whole) - 1)
    text = page_in(frame_of(grown))
    assert len(text) < len(whole)
    assert not [name for name in in_page(text) if "/tokens/" in name]
    assert trees_in(text) == trees_in(whole)


@pytest.mark.parametrize("uid", ["plain", HOSTILE])
def test_what_is_too_large_even_so_is_told_in_a_sentence(monkeypatch: pytest.MonkeyPatch, uid: str):
    monkeypatch.setattr(html_file, "MAX_BYTES", 10)
    text = frame_of(tree_of("one", uid=uid))
    elements = Elements()
    elements.feed(text)
    assert elements.found == [("p", {})]
    assert "is too large for a notebook; grow it into a run folder and open that by `ramify view`" in text


@pytest.mark.parametrize("name", ["Tree", "Rollout", "Saved"])
def test_only_a_notebook_gets_a_frame(name: str, tmp_path: Path, grown: Rollout):
    values: dict[str, Any] = {
        "Tree": tree_of("one"),
        "Rollout": grown,
        "Saved": Saved.open(run_of(tmp_path / "run", path_of(0))),
    }
    assert re.match("<iframe ", values[name]._repr_html_())
    assert "<iframe" not in repr(values[name])
