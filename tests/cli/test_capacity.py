"""`ramify capacity`: what it prints, its JSON, and what it refuses."""

from pathlib import Path

import pytest
from tests.cli.commands import ramify

QUICK = ("--preset", "tree_grpo", "--prompts", "8", "--turn-tokens", "20-60", "--tool-tokens", "40", "--turns", "1-3")


def test_fleets_beside_the_one_asked_for_and_what_binds(capsys: pytest.CaptureFixture[str]) -> None:
    said = ramify(capsys, "capacity", "--gpus", "4", "--model", "7b", "--price", "2.5", *QUICK)
    assert said.code == 0
    lines = said.out.splitlines()
    assert lines[0].startswith(
        "7b on h100, estimated: 1 GPU an engine, room for 990,165 tokens of keys and values; a step"
    )
    assert lines[1].startswith("tree_grpo, 8 trees at once: about ")
    assert lines[3].split()[:5] == ["GPUs", "engines", "time", "GPU-hours", "dollars"]
    assert [line.split()[0] for line in lines[4:8]] == ["1", "2", "4", "8"]
    assert "4 GPUs: the steps of one tree wait for each other" in said.out
    assert "set max_trees to their number (it is 32 in this configuration)" in said.out


def test_json_has_a_fleet_a_row(capsys: pytest.CaptureFixture[str]) -> None:
    found = ramify(capsys, "capacity", "--gpus", "2", "--model", "7b", "--json", *QUICK).json
    assert found["schema"] == "ramify.capacity/1"
    assert [row["num_gpus"] for row in found["fleets"]] == [1, 2, 4]
    row = found["fleets"][1]
    assert row["bounds"][row["binding"]] == max(row["bounds"].values())
    assert row["gpu_hours"] == pytest.approx(2 * row["seconds"] / 3600)
    assert found["engine"]["kv_tokens"] == pytest.approx(990_165, rel=1e-3)


def test_a_judge_that_is_not_counted_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--preset", "refine_chain", "--prompts", "2", "--turns", "1")
    said = ramify(capsys, "capacity", "--gpus", "1", "--model", "7b", *arguments)
    assert "not counted: what judge 'grade' takes" in said.out


@pytest.mark.slow
def test_the_workload_of_a_run(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    run = str(tmp_path / "run")
    assert ramify(capsys, "rollout", "--preset", "chains", "--prompts", "2", "--out", run).code == 0
    said = ramify(capsys, "capacity", "--gpus", "1", "--model", "0.5b", "--prompts", "4", "--like", run)
    assert said.code == 0, said.err


@pytest.mark.slow
def test_measured_costs(capsys: pytest.CaptureFixture[str]) -> None:
    said = ramify(capsys, "capacity", "--gpus", "1", "--measure", "--prompts", "2", "--turns", "1-2")
    assert said.code == 0, said.err
    assert said.out.startswith("engine 'builtin', measured; a step ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--gpus", "0"), "--gpus 0: at least 1 is needed"),
        (("--gpus", "1"), "--model is needed: a size (0.5b, "),
        (("--gpus", "1", "--model", "9b"), "--model '9b' is no size ("),
        (("--gpus", "1", "--model", "7b", "--gpu", "h10"), "--gpu 'h10': unknown GPU"),
        (("--gpus", "2", "--model", "72b"), "--gpus 2: an engine needs 4"),
        (("--gpus", "2", "--model", "72b", "--gpus-per-engine", "2"), "do not fit on 2 x h100"),
        (("--gpus", "1", "--model", "7b", "--gpus-per-engine", "0"), "--gpus-per-engine 0: at least 1"),
        (("--gpus", "1", "--model", "7b", "--block-size", "0"), "--block-size 0: at least 1"),
        (("--gpus", "1", "--model", "7b", "--turns", "0-2"), "--turns 0-2: whole numbers of 1 or more"),
        (("--gpus", "1", "--model", "7b", "--turns", "1.5"), "--turns 1.5: whole numbers of 1 or more"),
        (("--gpus", "1", "--model", "7b", "--turn-tokens", "many"), "--turn-tokens 'many': give a number or LOW-HIGH"),
        (
            ("--gpus", "1", "--model", "7b", "--tool-seconds", "3-1"),
            "--tool-seconds '3-1': give the smaller number first",
        ),
        (("--gpus", "1", "--model", "7b", "--shared-tokens", "501"), "501 tokens that all prompts share: 0 to 500"),
        (("--gpus", "1", "--model", "7b", "--price", "-1"), "--price -1.0: dollars, 0 or more"),
        (("--gpus", "1", "--model", "7b", "--base-url", "http://127.0.0.1:1"), "add --measure, or leave it out"),
    ],
)
def test_a_bad_command_is_refused(capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str) -> None:
    said = ramify(capsys, "capacity", *arguments)
    assert (said.code, said.out) == (2, "")
    assert message in said.err


def test_the_folder_of_a_model_is_read(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    from ramify.engines.builtin import FOLDER

    said = ramify(capsys, "capacity", "--gpus", "1", "--model", str(FOLDER), *QUICK)
    assert said.code == 0, said.err
    (tmp_path / "config.json").write_text("{")
    said = ramify(capsys, "capacity", "--gpus", "1", "--model", str(tmp_path), *QUICK)
    assert said.code == 2
    assert "config.json cannot be read: " in said.err
