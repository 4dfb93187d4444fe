"""`ramify noise`: a table of gradients' noise times tokens, and plain words where it cannot be had."""

import json
import math
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ramify.cli.main import main

FEW = ["--problems", "4", "--set", "task.options.num_numbers=3"]


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> Mapping[str, Any]:
    assert main(["noise", *FEW, *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--presets", ","], "name at least one preset"),
        (["--presets", "chains,chains"], "named twice"),
        (["--presets", "chain"], "unknown preset 'chain'"),
        (["--presets", "chains", "--problems", "0"], "at least 1"),
        (["--presets", "chains", "--problems", "1"], "at least 2"),
        (["--presets", "chains", "--seeds", "0"], "at least 1"),
        (["--presets", "chains", "--projection", "0"], "at least 1"),
        (["--presets", "chains", "--winsorise", "0"], "quantile"),
        (["--presets", "chains", "--winsorise", "1.5"], "quantile"),
        (["--presets", "chains", "--set", "spo:limits.decode=9"], "--presets does not name 'spo'"),
        (["--presets", "chains", "--set", "credit=nothing"], "credit"),
        (["--presets", "chains", "--task", "nothing"], "unknown task"),
    ],
)
def test_bad_input_is_said_before_anything_is_grown(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["noise", *arguments]) == 2
    assert said in capsys.readouterr().err


def test_a_projection_of_the_last_layer_is_not_offered(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["noise", "--presets", "chains", "--projection", "9", "--layers", "last"])
    assert "not allowed with" in capsys.readouterr().err


def test_without_torch_the_error_is_the_line_that_installs_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for module in ("torch", "transformers"):
        monkeypatch.setitem(sys.modules, module, None)
    for module in ("train.policy_gradient", "train.sketch", "engines.model_folder"):
        monkeypatch.delitem(sys.modules, f"ramify.{module}", raising=False)
    assert main(["noise", "--presets", "chains"]) == 2
    assert "pip install 'ramify[hf]'" in capsys.readouterr().err


@pytest.mark.hf
def test_it_holds_presets_against_the_first(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch", reason="pip install 'ramify[hf]'")
    assert main(["noise", "--presets", "chains,spo,tree_grpo", *FEW]) == 0
    shown = capsys.readouterr().out
    assert "|g|^2 x tokens" in shown and "variance x tokens" in shown and "most that a problem counts for" in shown
    assert "spo, |g|^2 x tokens: " in shown
    assert "tree_grpo and chains cannot be compared" in shown and "tree_grpo is not exact: " in shown
    assert "…" not in shown


@pytest.mark.hf
def test_its_json_holds_every_figure_and_is_the_same_again(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch", reason="pip install 'ramify[hf]'")
    found = told(capsys, "--presets", "chains,offline", "--set", "offline:strategy.options.commit=before")
    chains, offline = found["presets"]
    assert (found["problems"], found["seeds"], found["projection"]) == (4, 2, 4096)
    assert chains["second_moment"]["ratio"] is None and offline["second_moment"]["ratio"]["value"] >= 0
    assert chains["reasons"] == offline["reasons"] == []
    assert chains["variance"]["capped"]["value"] > 0
    again = told(capsys, "--presets", "chains,offline", "--set", "offline:strategy.options.commit=before")
    assert again == found


@pytest.mark.hf
def test_a_projection_is_near_the_whole_gradient_and_a_slice_is_a_part_of_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("torch", reason="pip install 'ramify[hf]'")
    wide, narrow, last = (
        told(capsys, "--presets", "chains", "--winsorise", "1", *how)
        for how in (["--projection", "100000"], ["--projection", "2000"], ["--layers", "last"])
    )
    raw = [each["presets"][0]["second_moment"]["raw"] for each in (wide, narrow, last)]
    assert raw[1] == pytest.approx(raw[0], rel=0.1)
    assert 0 < raw[2] < 0.9 * raw[0]
    assert last["projection"] is None and last["parameters"] < wide["parameters"]


@pytest.mark.hf
def test_one_tree_a_problem_gives_no_variance(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch", reason="pip install 'ramify[hf]'")
    (chains,) = told(capsys, "--presets", "chains", "--seeds", "1")["presets"]
    assert chains["variance"] is None and math.isfinite(chains["second_moment"]["raw"])


@pytest.mark.hf
def test_trees_without_rows_count_as_no_gradient_and_their_preset_is_not_compared(
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("torch", reason="pip install 'ramify[hf]'")
    found = told(capsys, "--presets", "chains,spo", "--set", "spo:limits.decode=1")
    spo = found["presets"][1]
    assert spo["zero"] == 1.0
    assert spo["reasons"] == ["8 of 8 trees have no rows, and count as no gradient"]
    assert any(line.startswith("spo and chains cannot be compared") for line in found["findings"])


@pytest.mark.hf
def test_the_rollouts_of_a_folder_are_sampled_by_the_same_folder(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    pytest.importorskip("torch", reason="pip install 'ramify[hf]'")
    from tests.engines.folders import write_folder

    folder = write_folder(tmp_path, "llama", tie_word_embeddings=False)
    found = told(capsys, "--presets", "chains", "--model", str(folder), "--layers", "last", "--seeds", "1")
    assert found["presets"][0]["tokens"] > 0


@pytest.mark.hf
def test_other_weights_than_those_that_sample_are_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="pip install 'ramify[hf]'")
    from safetensors.torch import load_file, save_file

    from ramify.engines.builtin import FOLDER

    other = Path(shutil.copytree(FOLDER, tmp_path / "other"))
    weights = load_file(FOLDER / "model.safetensors")
    save_file({**weights, "model.norm.weight": 1.2 * weights["model.norm.weight"]}, other / "model.safetensors")
    sampled_by = ["--set", "engine.name=builtin", "--set", "engine.options={}", "--set", f"engine.model={FOLDER}"]
    assert main(["noise", "--presets", "chains", *FEW, "--model", str(other), *sampled_by]) == 2
    assert "another policy's" in capsys.readouterr().err


@pytest.mark.hf
def test_a_task_with_a_model_of_its_own_is_measured_on_that_model(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch", reason="pip install 'ramify[hf]'")
    arguments = ["noise", "--presets", "chains", "--task", "herds", "--problems", "2", "--seeds", "1", "--json"]
    assert main(arguments) == 0
    assert json.loads(capsys.readouterr().out)["presets"][0]["tokens"] > 0


@pytest.mark.hf
def test_a_folder_that_is_not_there_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch", reason="pip install 'ramify[hf]'")
    assert main(["noise", "--presets", "chains", "--model", "nowhere"]) == 2
    assert "there is no folder 'nowhere'" in capsys.readouterr().err
