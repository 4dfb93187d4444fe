"""`ramify compare`: one table for several presets, a plot, and plain words where it cannot be had."""

import json
from pathlib import Path

import pytest

from ramify.cli.compare import Contender, conditions
from ramify.cli.main import main
from ramify.config.configure import resolve

FEW = ["--problems", "2", "--seeds", "2"]


@pytest.mark.slow
@pytest.mark.parametrize("task", ["countdown", "hops"])
def test_it_compares_presets_on_a_built_in_task(task: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    plot = tmp_path / "plot.svg"
    assert main(["compare", "--presets", "chains,offline", "--task", task, *FEW, "--plot", str(plot)]) == 0
    shown = capsys.readouterr().out
    assert "chains" in shown and "offline" in shown and "vs chains" in shown
    assert "…" not in shown
    assert "independent chains" in plot.read_text()
    assert ("gold answers" in shown) == (task == "hops")


@pytest.mark.slow
def test_its_json_holds_every_figure(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "--presets", "offline", *FEW, "--json"]) == 0
    (preset,) = json.loads(capsys.readouterr().out)["presets"]
    assert preset["num_trees"] == 4
    assert preset["leaves"] == 5.0
    assert set(preset["less_chains"]) == {"solved", "mixed"}
    assert preset["verdicts"] == []


@pytest.mark.slow
def test_the_same_command_gives_the_same_figures(capsys: pytest.CaptureFixture[str]) -> None:
    found: list[object] = []
    for _ in range(2):
        main(["compare", "--presets", "arpo", *FEW, "--json"])
        (preset,) = json.loads(capsys.readouterr().out)["presets"]
        found.append({name: value for name, value in preset.items() if name != "seconds"})
    assert found[0] == found[1]


@pytest.mark.slow
def test_presets_that_grow_the_same_trees_grow_them_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "--presets", "spo,treerpo", *FEW, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    spo, treerpo = told["presets"]
    assert {**spo, "name": "treerpo"} == treerpo
    assert any(line.startswith("treerpo grows the same trees as spo") for line in told["conditions"])


def test_what_an_arm_has_and_its_chains_have_not_is_said() -> None:
    contenders = [
        Contender(name, resolve(preset=name).config) for name in ("offline", "treerl", "deepsearch", "treepo")
    ]
    said = list(conditions(contenders, resolve(preset="chains").config))
    assert [line.partition(" ")[0] for line in said] == ["treerl", "deepsearch", "treepo"]
    assert "actions.policy" in said[0] and "gold answers" in said[1] and "growth" in said[2]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--presets", ","], "name at least one preset"),
        (["--presets", "arpo,arpo"], "named twice"),
        (["--presets", "arp"], "unknown preset 'arp'"),
        (["--presets", "arpo", "--problems", "0"], "at least 1"),
        (["--presets", "arpo", "--seeds", "0"], "at least 1"),
        (["--presets", "arpo", "--set", "limits.decode=0"], "limits.decode"),
        (["--presets", "arpo", "--set", "strategy.options.n=0"], "at least 1"),
        (["--presets", "arpo", "--task", "nothing"], "unknown task"),
    ],
)
def test_bad_input_is_said_before_anything_is_grown(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", *arguments]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.slow
def test_a_plot_without_a_known_ending_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["compare", "--presets", "chains", "--problems", "1", "--plot", str(tmp_path / "plot.nothing")]) == 2
    assert "plot" in capsys.readouterr().err
