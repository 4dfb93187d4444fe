from argparse import Namespace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from tests.cli.commands import ramify

from ramify.cli import demo
from ramify.cli.demo_compare import CONTENDERS, NUM_PROBLEMS
from ramify.cli.terminal import Terminal

SCRIPTED = ("--set", "engine.name=scripted")
FAST = ("--compare", "--fast", "--tokens", "150", *SCRIPTED)


def test_the_demo_grows_a_tree_in_which_a_fork_made_a_difference(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    said = ramify(capsys, "demo", "--out", tmp_path / "demo", "--json")
    assert said.code == 0
    values = said.json
    assert values["schema"] == "ramify.demo/2"
    assert {leaf["reward"] for leaf in values["leaves"]} == {0.0, 1.0}
    fork = values["forks"][0]["rewards"]
    assert {max(each) for each in fork} == {0.0, 1.0}
    assert [branch for branch in values["root_branches"] if 1.0 in branch] == [[0.0, 1.0, 1.0]]


def test_the_run_of_the_demo_is_an_ordinary_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    said = ramify(capsys, "demo")
    assert said.code == 0
    assert "made a difference" in said.out
    assert "was chosen" in said.out
    commands = [line.partition("#")[0].split()[1:] for line in said.out.splitlines() if line.startswith("  ramify ")]
    assert len(commands) == 3
    assert all(ramify(capsys, *command).code == 0 for command in commands[:2])
    assert ramify(capsys, "check", "runs/demo").code == 0
    assert (tmp_path / "runs" / "demo" / "tree.svg").read_text("utf-8").startswith("<svg ")
    assert ramify(capsys, "demo").code == 0
    assert (tmp_path / "runs" / "demo-2" / "tree.svg").exists()


def test_a_tree_of_other_settings_is_not_said_to_be_chosen(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    said = ramify(capsys, "demo", *SCRIPTED, "--set", "seed=1", "--out", tmp_path / "demo")
    assert said.code == 0
    assert "was chosen" not in said.out
    assert "root branches" in said.out


@pytest.mark.parametrize("flag", [["--fast"], ["--tokens", "99"]])
def test_flags_of_the_comparison_are_refused_without_it(flag: list[str], capsys: pytest.CaptureFixture[str]):
    said = ramify(capsys, "demo", *flag)
    assert said.code == 2
    assert "--compare" in said.err


def test_a_demo_that_cannot_start_leaves_no_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    assert ramify(capsys, "demo", "--set", "engine.name=nowhere").code == 2
    assert ramify(capsys, "demo", "--compare", "--set", "engine.name=nowhere").code == 2
    assert not list((tmp_path / "runs").iterdir())


@pytest.mark.slow
def test_on_a_terminal_the_same_tree_grows_step_by_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """The live drawing ends, and what stays is what a pipe gets."""
    screen = Console(file=StringIO(), force_terminal=True, width=120, height=50, color_system=None)
    options = Namespace(
        model=None, task=None, compare=False, fast=False, tokens=None, json=False, set=[], out=tmp_path / "live"
    )
    assert demo.execute(options, Terminal(screen, Console(file=StringIO()))) == 0
    shown = written(screen)
    assert shown.count("make 16 from") > 10
    piped = ramify(capsys, "demo", "--out", tmp_path / "pipe").out
    assert shown.rpartition("make 16 from")[2] == piped.rpartition("make 16 from")[2].replace("pipe", "live")
    pictures = [(tmp_path / name / "tree.svg").read_bytes() for name in ("live", "pipe")]
    assert pictures[0] == pictures[1]


def written(console: Console) -> str:
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


@pytest.mark.slow
def test_the_comparison_gives_advice_and_compares_at_equal_tokens(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    said = ramify(capsys, "demo", *FAST)
    assert said.code == 0
    assert said.out.startswith("advice of a pilot (8 of the problems")
    assert all(each.title in said.out for each in CONTENDERS)
    assert "context new" not in said.out
    assert "before you choose a tree" in said.out
    assert said.out.count("  ramify ") == 2
    for each in CONTENDERS:
        assert ramify(capsys, "check", tmp_path / "runs" / "demo-compare" / each.name).code == 0


@pytest.mark.slow
def test_every_strategy_of_the_comparison_spends_the_same_tokens(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    said = ramify(capsys, "demo", *FAST, "--out", tmp_path / "demo", "--json")
    assert said.json["schema"] == "ramify.demo_compare/1"
    arms: list[dict[str, Any]] = said.json["arms"]
    assert [arm["name"] for arm in arms] == [each.name for each in CONTENDERS]
    assert len({arm["decode_tokens"] for arm in arms}) == 1
    assert {arm["trees"] for arm in arms} == {8}
    assert arms[0]["less_chains"] is None


@pytest.mark.slow
def test_verbose_the_comparison_tells_phases_and_all_columns(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    said = ramify(capsys, "demo", *FAST, "--set", "prompts=2", "--out", tmp_path / "demo", "-v")
    assert "context new" in said.out
    assert "2 held-out countdown problems" in said.out
    assert all(f"{each.name}: tree 1: done" in said.err for each in CONTENDERS)
    assert NUM_PROBLEMS > 8
