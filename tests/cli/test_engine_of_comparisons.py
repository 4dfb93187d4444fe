"""`ramify compare` and `ramify eval` take the engine, its model and files of settings as every other command does."""

import json
from pathlib import Path

import pytest
from tests.cli.commands import ramify
from tests.engines.endpoint import Endpoint, said

from ramify.cli.main import main

FEW = ("--presets", "chains", "--problems", "2", "--seeds", "1")
BOTH = pytest.mark.parametrize("command", ["compare", "eval"])


def questions(tmp_path: Path) -> Path:
    file = tmp_path / "questions.jsonl"
    file.write_text("".join(json.dumps({"question": f"{i} + 1?", "answer": "3"}) + "\n" for i in range(2)), "utf-8")
    return file


@BOTH
def test_flags_name_the_engine_its_model_and_its_address(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    config = tmp_path / "own.toml"
    config.write_text(f'data = "{questions(tmp_path)}"\n', "utf-8")
    with Endpoint(lambda body: said("<answer>3</answer>", usage=(7, 12))) as endpoint:
        flags = ("--engine", "openai", "--model", "m", "--base-url", endpoint.url, "-c", config)
        told = ramify(capsys, command, *FEW, *flags, "--json")
        assert {request["model"] for request in endpoint.requests} == {"m"}
    assert (told.code, told.json["task"]) == (0, "data")


@BOTH
def test_a_flag_goes_over_a_file(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    config = tmp_path / "own.toml"
    config.write_text('[task]\nname = "hops"\n\n[engine]\nname = "openai"\n', "utf-8")
    told = ramify(capsys, command, *FEW, "-c", config, "--engine", "scripted", "--json")
    assert (told.code, told.json["task"]) == (0, "hops")


@BOTH
def test_a_file_whose_strategy_would_replace_that_of_every_preset_is_refused(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    config = tmp_path / "own.toml"
    config.write_text('[strategy]\nname = "beam"\n', "utf-8")
    assert main([command, *FEW, "-c", str(config)]) == 2
    assert f"-c {config}: it names the strategy 'beam'" in capsys.readouterr().err
