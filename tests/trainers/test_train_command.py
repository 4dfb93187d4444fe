"""`ramify train` trains, evaluates, goes on where it stopped, and writes a model that the engines run."""

import json
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.trackers import tracked

from ramify import resolve
from ramify.cli.main import main
from ramify.engines.shipped import MODELS

pytestmark = [
    pytest.mark.trainers,
    pytest.mark.filterwarnings("ignore"),  # of other people's libraries
]
pytest.importorskip("trl", reason="trl is not installed: make test-trainers")

SMALL = ("train", "--task", "herds", "--trees", "3", "--set", "strategy.options.n=4")
"""The shortest training; its evaluation is of 100 problems."""


def trained(folder: Path, *arguments: str) -> int:
    return main([*SMALL, "--out", str(folder), *arguments])


def logged(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "log.jsonl").read_text("utf-8").splitlines()]


def test_it_trains_and_evaluates_and_the_model_plays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert trained(tmp_path / "out", "--steps", "2", "--eval-every", "2", "--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert [each["step"] for each in said["evaluations"]] == [0, 2]
    assert all(0.3 < each["eval_heldout"] < 0.9 for each in said["evaluations"])
    updates = [each for each in logged(tmp_path / "out") if "reward" in each]
    assert [each["step"] for each in updates] == [1, 2]
    assert all(each["seconds/rollout"] > 0 and each["completions/trained_tokens"] > 0 for each in updates)
    model = Path(said["model"])
    assert (model / "tokenizer.json").read_bytes() == (MODELS["herds"] / "tokenizer.json").read_bytes()
    assert main(["demo", "--model", str(model), "--task", "herds", "--out", str(tmp_path / "demo")]) == 0
    assert "sampled tokens" in capsys.readouterr().out


def test_updates_and_evaluations_are_tracked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = (
        "--eval-every",
        "1",
        "--save-every",
        "1",
        "--set",
        "service.eval.heldout.prompts=2",
        "--track",
        "jsonl",
    )
    assert trained(tmp_path, "--steps", "1", *arguments) == 0
    assert f"track jsonl: {tmp_path / 'metrics.jsonl'}" in capsys.readouterr().err
    assert trained(tmp_path, "--steps", "2", *arguments) == 0  # what was tracked is not tracked again
    lines = tracked.lines(tmp_path)
    assert {line["step_key"] for line in lines} == {"train/step"}
    assert [line["step"] for line in lines] == [0, 1, 1, 2, 2]
    assert [("reward" in line["metrics"], "eval_heldout" in line["metrics"]) for line in lines] == [
        (False, True), (True, False), (False, True), (True, False), (False, True)
    ]  # fmt: skip


def test_the_same_command_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    without = ("--eval-every", "0", "--save-every", "1")
    assert trained(whole, "--steps", "3", *without) == 0
    for steps in ("1", "3", "3"):  # the last call has nothing to do
        assert trained(parts, "--steps", steps, *without) == 0
    assert [each["step"] for each in logged(parts)] == [1, 2, 3]
    weights = "model/model.safetensors"
    assert (parts / weights).read_bytes() == (whole / weights).read_bytes()
    assert str(parts / "model") in capsys.readouterr().out


def test_trees_of_any_size(tmp_path: Path) -> None:
    arguments = ("--steps", "1", "--eval-every", "1", "--set", "service.eval.heldout.prompts=2")
    assert trained(tmp_path, *arguments, "--set", "strategy.options.n=6") == 0  # TRL's default takes 2, 4 and 8


def test_the_log_of_a_training_that_was_killed_before_its_first_checkpoint_is_not_kept(tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").write_text('{"step": 0, "tokens": 9}\n{"step": 1, "tokens": 99}\n', "utf-8")
    assert trained(tmp_path, "--steps", "2", "--eval-every", "0") == 0
    assert [each["step"] for each in logged(tmp_path)] == [1, 2]


def test_an_evaluation_that_a_kill_cut_off_behind_the_last_checkpoint_is_made_again(tmp_path: Path) -> None:
    arguments = ("--steps", "3", "--eval-every", "2", "--save-every", "1")
    assert trained(tmp_path, *arguments) == 0
    *before, last = whole = logged(tmp_path)
    assert last["step"] == 3 and "eval_step" in last
    (tmp_path / "log.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in before), "utf-8")
    assert trained(tmp_path, *arguments) == 0
    again = logged(tmp_path)
    assert [each.get("eval_heldout") for each in again] == [each.get("eval_heldout") for each in whole]
    assert again[-1]["tokens"] == last["tokens"]
    assert trained(tmp_path, *arguments) == 0
    assert logged(tmp_path) == again


def grown(trees: Path) -> dict[str, Any]:
    """The settings of the run that grew the trees."""
    return tomllib.loads((trees / "service/config.toml").read_text("utf-8"))


PLANNED = (
    "--steps", "4", "--eval-every", "2", "--save-every", "1", "--plan", "6", "--set", "service.eval.heldout.prompts=5",
)  # fmt: skip


def test_a_pilot_shapes_the_trees(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert trained(tmp_path, *PLANNED, "--json") == 0
    said = capsys.readouterr()
    plans = json.loads(said.out)["plans"]
    assert [each["step"] for each in plans] == [0]
    assert "before the first update, from 6 problems" in said.err
    plan, *others = logged(tmp_path)
    assert plan == plans[0]
    assert plan["tokens"] > 0 and [each["tokens"] - plan["tokens"] >= 0 for each in others]
    assert grown(tmp_path / "trees")["strategy"] == {
        "name": "planned",
        "options": {"children": plan["plan"]["children"]},
    }


def moved_at(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """Says of each policy after so many updates that it has moved."""
    from ramify.train import loop

    def has_moved(log: Any) -> bool:
        return log.plans[-1]["step"] < step == log.lines[-1]["step"] and "eval_step" in log.lines[-1]

    monkeypatch.setattr(loop, "has_moved", has_moved)


def test_a_policy_that_has_moved_gets_a_new_plan_and_new_problems(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    moved_at(monkeypatch, 2)
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert trained(whole, *PLANNED) == 0
    assert "planned again after 2 updates" in capsys.readouterr().err
    lines = logged(whole)
    assert [each["step"] for each in lines if "plan" in each] == [0, 2]
    assert [each["step"] for each in lines if "reward" in each] == [1, 2, 3, 4]
    assert [each["step"] for each in lines if "eval_step" in each] == [0, 2, 4]
    assert grown(whole / "trees-2")["seed"] == grown(whole / "trees").get("seed", 0) + 1

    def cut(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    from ramify.train import loop

    plan = loop.make_plan
    with monkeypatch.context() as patch:  # stopped between the end of the old plan and the new one
        patch.setattr(
            loop, "make_plan", lambda *given, step, **named: (cut if step else plan)(*given, step=step, **named)
        )
        assert trained(parts, *PLANNED) == 130
    with monkeypatch.context() as patch:  # stopped behind the new plan
        patch.setattr(loop, "make_plan", lambda *given, **named: (plan(*given, **named), cut()))
        assert trained(parts, *PLANNED) == 130
    assert trained(parts, *PLANNED) == 0
    weights = "model/model.safetensors"
    assert (parts / weights).read_bytes() == (whole / weights).read_bytes()
    assert [each.get("eval_heldout") for each in logged(parts)] == [each.get("eval_heldout") for each in lines]


def test_an_arm_is_planned_by_pilots(tmp_path: Path) -> None:
    from ramify.train.compare import compare
    from ramify.train.loop import TrainConfig

    flags = {"task.name": "herds", "task.split": "train", "prompts": 64}
    arms = {name: resolve(preset=name, flags=flags).config for name in ("chains", "planned")}
    config = TrainConfig(model=str(MODELS["herds"]), out=tmp_path, tokens=1500, trees=3, eval_every=0, pilot=4)
    found = compare(arms, config, seeds=(0,), exam_problems=6, exam_repeats=2)
    assert not any("plan" in line for line in logged(tmp_path / "chains/0"))
    plan, *updates = logged(tmp_path / "planned/0")
    assert plan["plan"]["children"][0] >= 2 and updates
    assert found.arms[1].policies[0].tokens == updates[-1]["tokens"] > plan["tokens"] > 0


def test_arms_are_compared_at_equal_tokens(tmp_path: Path) -> None:
    from rich.console import Console

    from ramify.cli.plot import draw_learning
    from ramify.cli.train import _values, findings, table
    from ramify.train.compare import compare
    from ramify.train.loop import TrainConfig

    flags = {"task.name": "herds", "task.split": "train", "prompts": 64}
    arms = {name: resolve(preset=name, flags=flags).config for name in ("chains", "planned")}
    config = TrainConfig(model=str(MODELS["herds"]), out=tmp_path, steps=99, tokens=600, trees=3, eval_every=0)
    found = compare(arms, config, seeds=(0, 1), exam_problems=6, exam_repeats=2)
    assert [arm.name for arm in found.arms] == ["chains", "planned"]
    for arm in found.arms:
        assert all(600 <= policy.tokens < 1800 for policy in arm.policies)
        assert arm.scores.shape == (2, 6)
        gain = found.gain(arm)
        assert gain.low <= gain.value <= gain.high
    assert _values(found)["arms"][1]["policies"][1]["updates"] > 0
    assert any("no difference to chains was shown" in line for line in findings(found))
    console = Console(width=200, record=True)
    console.print(table(found))
    assert "planned" in console.export_text()
    draw_learning(found, tmp_path / "learning.svg", title="herds")
    assert (tmp_path / "learning.svg").stat().st_size > 1000
    again = compare(arms, config, seeds=(0, 1), exam_problems=6, exam_repeats=2)
    assert _values(again) == _values(found)


def test_an_interval_is_over_problems_and_seeds() -> None:
    import numpy as np

    from ramify.train.compare import interval

    alike = np.tile(np.linspace(0, 1, 50), (3, 1))
    apart = alike + np.array([[-0.3], [0.0], [0.3]])
    assert interval(apart).value == pytest.approx(interval(alike).value)
    assert interval(apart).high - interval(apart).low > 2 * (interval(alike).high - interval(alike).low)


def test_other_settings_in_the_same_folder_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert trained(tmp_path, "--steps", "1", "--eval-every", "0", "--save-every", "1") == 0
    assert trained(tmp_path, "--steps", "2", "--eval-every", "0", "--seed", "7") == 2
    assert "was begun with another configuration" in capsys.readouterr().err
    assert trained(tmp_path, "--steps", "2", "--eval-every", "0", "--plan", "4") == 2
    assert "was begun without plans: leave the plan out" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--steps", "0"], "steps = 0: at least 1 is needed"),
        (["--plan", "1"], "pilot = 1: intervals are over problems, so at least 2 are needed"),
        (["--plan", "--steps", "1"], "say how many problems the pilot has"),
        (["--trees", "0"], "trees = 0: at least 1 is needed"),
        (["--learning-rate", "-1"], "learning_rate = -1.0: a number above 0"),
        (["--policy", "no-such-folder"], "no-such-folder' has no config.json"),
        (["--engine", "scripted"], "engine 'scripted' names no model; --policy DIR"),
        (["--trl", "epsilon"], "NAME=VALUE is needed"),
        (["--trl", "epsilom=0.1"], "GRPOConfig has no argument 'epsilom'"),
        (["--trl", "loss_type=grpo"], "loss_type = 'grpo': set 'dr_grpo' or 'luspo'"),
        (["--trl", "num_generations=7"], "GRPOConfig: "),
        (["--set", "actions.policy.sampling.top_p=0.5"], "top_p = 1 and top_k = 0"),
    ],
)
def test_bad_input(arguments: Sequence[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert trained(tmp_path / "out", "--eval-every", "0", *arguments) == 2
    assert said in capsys.readouterr().err
