"""A divided run on the command line: shown, exported, checked, repaired and resumed like any other."""

import importlib.util
from pathlib import Path

import pytest
from tests.cli.commands import SCRIPTED, ramify
from tests.sharded.divided import config, divided
from tests.trackers import tracked

from ramify.core.shard import Shard
from ramify.runner import loop
from ramify.runner.folder import begin, grow_shard
from ramify.runner.saved import Saved
from ramify.store.layout import shard_path

without_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is not None, reason="Ray is installed")


@pytest.fixture
def half(tmp_path: Path) -> Path:
    """A divided run of which one shard is grown."""
    problems = divided(config(), tmp_path / "run", num_shards=2)
    loop.run(grow_shard(tmp_path / "run", Shard(0, 2).of(problems)))
    return tmp_path / "run"


@pytest.mark.slow
@pytest.mark.covers("S3.10")
def test_a_divided_run_is_used_like_any_other(half: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    begin(config(), tmp_path / "whole")
    assert ramify(capsys, "check", half, "--json").json["trees"] == 4
    resumed = ramify(capsys, "resume", half, "--json")
    assert (resumed.code, resumed.json["trees"], resumed.json["run"]) == (0, 7, str(half))
    exports: list[bytes] = []
    for run in (half, tmp_path / "whole"):
        checked = ramify(capsys, "check", run, "--json")
        assert (checked.code, checked.json["trees"], checked.json["breaches"]) == (0, 7, [])
        assert ramify(capsys, "show", run).out.count("make ") == 7
        said = ramify(capsys, "export", run, "--to", "jsonl", "--out", tmp_path / "rows.jsonl", "--force")
        assert said.code == 0
        exports.append((tmp_path / "rows.jsonl").read_bytes())
    assert exports[0] == exports[1]
    shown = [ramify(capsys, "show", run, 5).out for run in (half, tmp_path / "whole")]
    assert shown[0] == shown[1]


def test_the_missing_trees_of_every_shard_are_tracked(half: Path, capsys: pytest.CaptureFixture[str]):
    before = {index for index, _ in Saved.open(half).numbered_trees()}
    assert ramify(capsys, "resume", half, "--track", "jsonl").code == 0
    steps = [line["step"] for line in tracked.lines(half)]
    assert sorted([*before, *steps]) == list(range(7))
    assert ramify(capsys, "check", half, "--json").json["trees"] == 7


def test_every_shard_is_repaired(half: Path, capsys: pytest.CaptureFixture[str]):
    journal = shard_path(half, 0) / "journal" / "000000.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join([*lines[:5], *lines[6:]]))
    assert ramify(capsys, "check", half).code == 5
    said = ramify(capsys, "repair", half, "--json")
    assert said.json["shards"]["0"]["missing"] == [5]
    assert "ramify resume" in said.err
    assert "shard 0: the journal is whole" in ramify(capsys, "repair", half).out
    assert ramify(capsys, "resume", half, "--json").json["trees"] == 7
    assert ramify(capsys, "check", half).code == 0


def test_a_divided_run_with_a_damaged_layout_is_read_resumed_and_repaired(
    half: Path, capsys: pytest.CaptureFixture[str]
):
    text = (half / "shards.json").read_bytes()
    (half / "shards.json").write_bytes(text.replace(b'"num_shards": 2', b'"num_shards": 3'))
    said = ramify(capsys, "check", half)
    assert said.code == 5 and "shards.json is damaged" in said.out and f"ramify repair {half}" in said.out
    said = ramify(capsys, "resume", half, "--json")
    assert (said.code, said.json["trees"]) == (0, 7) and "shards.json is damaged" in said.err
    said = ramify(capsys, "repair", half)
    assert said.code == 0 and "shards.json was damaged and is written again" in said.err
    assert (half / "shards.json").read_bytes() == text
    assert ramify(capsys, "check", half).code == 0


def test_workers_need_ray_to_be_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    out = tmp_path / "run"
    said = ramify(capsys, "rollout", *SCRIPTED, "--workers", 2, "--out", out)
    assert (said.code, out.exists()) == (2, False)
    assert "--workers 2: only a run with --ray has workers" in said.err
    said = ramify(capsys, "rollout", *SCRIPTED, "--ray", "--workers", 0, "--out", out)
    assert (said.code, out.exists()) == (2, False)
    assert "at least 1" in said.err


def test_a_run_with_one_journal_is_not_resumed_by_workers(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    begin(config(), tmp_path / "whole")
    said = ramify(capsys, "resume", tmp_path / "whole", "--ray")
    assert said.code == 2
    assert "was started without --ray and has one journal" in said.err


def test_what_workers_cannot_share_is_refused_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    out = tmp_path / "run"
    said = ramify(capsys, "rollout", *SCRIPTED, "--ray", "--set", f"engine.log={tmp_path / 'log'}", "--out", out)
    assert (said.code, out.exists()) == (2, False)
    assert "all would write to one file" in said.err


@without_ray
def test_without_ray_the_install_line_is_given(half: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    out = tmp_path / "other"
    said = ramify(capsys, "rollout", *SCRIPTED, "--ray", "--out", out)
    assert (said.code, out.exists()) == (2, False)
    assert "pip install 'ramify[ray]'" in said.err
    assert "pip install 'ramify[ray]'" in ramify(capsys, "resume", half, "--ray").err
