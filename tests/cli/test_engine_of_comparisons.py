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


# -- ramify.toml of the current folder ------------------------------------------------------------------------------


def project(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with this `ramify.toml`, which is the current one from now on."""
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "ramify.toml"
    file.write_text(text, "utf-8")
    return file


@BOTH
def test_the_file_of_the_current_folder_is_read(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    project(
        'preset = "beam"\nprompts = 3\nseed = 7\n[task]\nname = "hops"\n[engine]\nname = "scripted"\n',
        tmp_path,
        monkeypatch,
    )
    told = ramify(capsys, command, "--presets", "chains", "--seeds", "1", "--json")
    assert (told.code, told.json["task"]) == (0, "hops")
    assert told.err.startswith("3 problems of hops, ")
    other = ramify(capsys, command, "--presets", "chains", "--seeds", "1", "--seed", "8", "--json")
    assert other.json != told.json
    given = ("--task", "hops", "--engine", "scripted", "--problems", "3", "--seed", "7")
    (tmp_path / "ramify.toml").unlink()
    same = ramify(capsys, command, "--presets", "chains", "--seeds", "1", *given, "--json")
    assert figures(same.json) == figures(told.json)


def figures(told: dict[str, object]) -> list[dict[str, object]]:
    """The lines of a comparison without their times."""
    lines = told.get("presets") or told["lines"]
    assert isinstance(lines, list)
    return [{name: value for name, value in line.items() if name != "seconds"} for line in lines]


@BOTH
def test_flags_and_other_files_go_over_the_file_of_the_current_folder(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    project('prompts = 5\n[task]\nname = "hops"\n[engine]\nname = "openai"\n', tmp_path, monkeypatch)
    (tmp_path / "own.toml").write_text('[task]\nname = "herds"\n', "utf-8")
    told = ramify(capsys, command, *FEW, "--engine", "scripted", "-c", "own.toml", "--json")
    assert (told.code, told.json["task"]) == (0, "herds")
    assert told.err.startswith("2 problems of herds, ")
    told = ramify(capsys, command, *FEW, "--engine", "scripted", "-c", "own.toml", "--task", "countdown", "--json")
    assert told.json["task"] == "countdown"


@BOTH
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[strategy]\nname = "beam"\n', "it names the strategy 'beam', which would replace that of chains; move its"),
        ("[strategy", "this is no TOML"),
        ("promts = 3\n", "promts: unknown key; did you mean 'prompts'"),
        ('prompts = "many"\n', "prompts = 'many': a whole number of at least 1 is needed"),
        ("prompts = 0\n", "prompts = 0: a whole number of at least 1 is needed"),
    ],
)
def test_what_cannot_be_of_every_preset_in_the_file_of_the_current_folder_is_said(
    command: str,
    text: str,
    words: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
):
    file = project(text, tmp_path, monkeypatch)
    told = ramify(capsys, command, "--presets", "chains", "--engine", "scripted")
    assert (told.code, told.out) == (2, "")
    assert words in told.err
    assert str(file) in told.err


@BOTH
def test_a_contender_that_is_a_file_keeps_its_strategy_beside_the_file_of_the_current_folder(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    project('[engine]\nname = "scripted"\n[limits]\nleaves = 2\n', tmp_path, monkeypatch)
    (tmp_path / "mine.toml").write_text('[strategy]\nname = "chains"\n[strategy.options]\nn = 4\n', "utf-8")
    told = ramify(capsys, command, "--presets", "chains,mine.toml", "--problems", "2", "--seeds", "1", "--json")
    assert told.code == 0
    lines = told.json.get("presets") or told.json["lines"]
    assert [line["name"] for line in lines] == ["chains", "mine.toml"]
    assert {line.get("leaves", 2) for line in lines} == {2}
