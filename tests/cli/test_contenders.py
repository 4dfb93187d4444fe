"""Contenders: presets and configuration files side by side, with settings of all of them and of one."""

import json
from pathlib import Path

import pytest

from ramify.cli.contenders import settings_of
from ramify.cli.main import main

PLAN = """
[strategy]
name = "planned"

[strategy.options]
children = [2.0, 1.0, 2.0]
"""


def test_a_setting_may_be_of_a_single_preset() -> None:
    given = ["a.b=1", "offline:c.d=2", "task.name=file.py:Class"]
    assert settings_of("offline", ["chains", "offline"], given) == ["a.b=1", "c.d=2", "task.name=file.py:Class"]
    assert settings_of("chains", ["chains", "offline"], given) == ["a.b=1", "task.name=file.py:Class"]


@pytest.mark.slow
def test_a_file_stands_beside_presets(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text(PLAN)
    few = ["--problems", "3", "--seeds", "1", "--set", f"{plan}:limits.leaves=3"]
    assert main(["compare", "--presets", f"chains,{plan}", *few, "--json"]) == 0
    chains, planned = json.loads(capsys.readouterr().out)["presets"]
    assert (chains["leaves"], planned["name"]) == (8, str(plan))
    assert 2 <= planned["leaves"] <= 3


@pytest.mark.parametrize("command", ["compare", "eval", "noise"])
@pytest.mark.parametrize(
    ("text", "said"), [(None, "cannot be read"), ("[strategy", "no TOML"), ("[strategy]\nname = 'x'", "plan.toml")]
)
def test_a_file_that_is_none_is_said(
    command: str, text: str | None, said: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    plan = tmp_path / "plan.toml"
    if text is not None:
        plan.write_text(text)
    assert main([command, "--presets", f"chains,{plan}"]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("command", ["compare", "eval", "noise"])
def test_a_setting_of_a_preset_that_is_not_run_is_said(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--presets", "chains", "--set", "spo:limits.decode=9"]) == 2
    assert "--presets does not name 'spo'" in capsys.readouterr().err
