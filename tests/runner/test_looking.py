"""A run is read from its record and built-in parts; whoever trusts it loads its own parts too."""

from pathlib import Path
from typing import Any

import pytest

from ramify.config.configure import from_toml, recorded, resolve, to_toml
from ramify.config.presets import preset_names
from ramify.config.run_config import RunConfig
from ramify.core.errors import ExportError, StoreError
from ramify.core.tree import Tree
from ramify.plugins import NotLoaded
from ramify.rows.row import Row
from ramify.runner.folder import begin
from ramify.runner.saved import Saved
from ramify.store.store import header_and_config

ENGINE = """
import hashlib

from ramify.core.codec import ByteCodec
from ramify.testing import Scripted


class Turned(ByteCodec):
    "Bytes under another name."

    name = "turned"
    sha256 = hashlib.sha256(b"turned").hexdigest()


class Engine(Scripted):
    def __init__(self):
        super().__init__(codec=Turned(is_exact=True))
"""


def run_of(preset: str, **flags: Any) -> RunConfig:
    return resolve(
        preset=preset, flags={"prompts": 2, "engine.name": "scripted", "task.name": "countdown", **flags}
    ).config


def seen(tree: Tree) -> list[Any]:
    return [(tree.stop(n), tree.branch(n).text, tree.branch(n).ids.tolist()) for n in tree.subtree()]


def told(row: Row) -> Any:
    return row.uid, row.ids.tolist(), row.advantages.tolist(), row.reasons, row.credit


@pytest.mark.parametrize("preset", ["offline", "arpo", "treerl", "tree_grpo", "mctsr"])
def test_a_run_is_read_without_its_parts_as_with_them(preset: str, tmp_path: Path) -> None:
    begin(run_of(preset), tmp_path / "run")
    look, trusted = Saved.open(str(tmp_path / "run")), Saved.trusted(str(tmp_path / "run"))
    assert look.config == trusted.config
    assert look.rules == trusted.rules
    assert look.traits.planned_leaves == trusted.traits.planned_leaves
    assert look.traits.post_hoc_reasons == trusted.traits.post_hoc_reasons
    assert (look.traits.post_hoc is None) == (trusted.traits.post_hoc is None)
    assert [seen(tree) for tree in look.trees()] == [seen(tree) for tree in trusted.trees()]
    assert [told(row) for row in look.rows()] == [told(row) for row in trusted.rows()]
    assert list(look.answers()) == list(trusted.answers())


@pytest.mark.parametrize("preset", preset_names())
def test_a_recorded_configuration_is_read_as_it_was(preset: str) -> None:
    text = to_toml(resolve(preset=preset, flags={"engine.name": "scripted"}).config)
    assert recorded(text) == from_toml(text)


def test_a_tokenizer_that_is_not_read_is_shown_by_numbers(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(ENGINE, "utf-8")
    begin(run_of("chains", **{"engine.name": f"{tmp_path / 'mine.py'}:Engine"}), tmp_path / "run")
    saved = Saved.open(tmp_path / "run")
    (tree, *_) = saved.trees()
    assert tree.branch(tree.leaves()[0]).text.startswith("\u27e8")
    assert list(map(told, saved.rows())) == list(map(told, Saved.trusted(tmp_path / "run").rows()))
    with pytest.raises(ExportError, match=r"'sft' writes text.*'turned'.*--trust"):
        saved.refuse_unread_text("export 'sft'")
    (trusted, *_) = Saved.trusted(tmp_path / "run").trees()
    assert trusted.branch(trusted.leaves()[0]).text.startswith("<")


def test_a_stop_word_of_a_format_that_is_not_read_is_recorded(tmp_path: Path) -> None:
    (tmp_path / "form.py").write_text("from ramify.formats.arpo import arpo\nMINE = arpo({'calculator': 'calc'})\n")
    begin(run_of("offline", format=f"{tmp_path / 'form.py'}:MINE"), tmp_path / "run")
    saved = Saved.open(tmp_path / "run")
    header, _ = header_and_config(tmp_path / "run")
    assert header.reading is not None
    assert saved.rules.words == header.reading.stops == Saved.trusted(tmp_path / "run").rules.words
    with pytest.raises(NotLoaded, match=r"form.py:MINE.*--trust"):
        saved.answers()


@pytest.mark.slow
def test_a_rule_of_a_strategy_that_is_not_read_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "plan.py").write_text(
        "from ramify.strategies.treerl import TreeRL, TreeRLConfig\n\n\nclass Mine(TreeRL):\n"
        "    Config = TreeRLConfig\n\n    def post_hoc_rule(self, words):\n"
        "        return super().post_hoc_rule(words)\n"
    )
    begin(
        run_of("treerl", **{"strategy.name": f"{tmp_path / 'plan.py'}:Mine", "credit": "balanced_split"}),
        tmp_path / "run",
    )
    with pytest.raises((ExportError, StoreError), match=r"plan.py:Mine.*--trust"):
        list(Saved.open(tmp_path / "run").rows())
