from pathlib import Path

import pytest
from tests.cli.commands import ramify

from ramify.cli.demo import CONTENDERS

SCRIPTED = ("--fast", "--tokens", "150", "--set", "engine.name=scripted")


def test_the_demo_draws_a_tree_compares_at_equal_tokens_and_says_what_to_try(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    said = ramify(capsys, "demo", *SCRIPTED)
    assert said.code == 0
    assert said.out.startswith("make ")
    assert all(each.title in said.out for each in CONTENDERS)
    assert "before you choose a tree" in said.out
    assert said.out.count("  ramify ") == 3
    for each in CONTENDERS:
        assert ramify(capsys, "check", tmp_path / "runs" / "demo" / each.name).code == 0


def test_every_strategy_of_the_demo_spends_the_same_tokens(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    said = ramify(capsys, "demo", *SCRIPTED, "--out", tmp_path / "demo", "--json")
    arms = said.json["arms"]
    assert [arm["name"] for arm in arms] == [each.name for each in CONTENDERS]
    assert len({arm["decode_tokens"] for arm in arms}) == 1
    assert arms[0]["less_chains"] is None
