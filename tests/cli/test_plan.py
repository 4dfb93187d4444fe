"""`ramify plan`: a pilot of the command line's own configuration, its advice, and the file it writes."""

import json
import tomllib
from pathlib import Path

import pytest
from tests.cli.commands import ramify

SMALL = ("plan", "--budget", "decode_tokens=120", "--pilot", "8", "--set", "task.split=heldout")


@pytest.mark.slow
def test_countdown_is_told_not_to_fork_and_to_prune(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    said = ramify(capsys, *SMALL, "--pilot", "20", "--aim", "coverage", "--out", tmp_path / "plan.toml")
    assert said.code == 0
    assert "advice: do not fork" in said.out and "prune" in said.out
    assert "step 1" in said.out and "go on" in said.out
    written = tomllib.loads((tmp_path / "plan.toml").read_text("utf-8"))
    assert written["strategy"]["name"] == "planned" and len(written["strategy"]["options"]["children"]) == 1
    assert written["growth"] == {"prune": "task", "keep": 0.0}
    run = ramify(capsys, "rollout", "-c", tmp_path / "plan.toml", "--prompts", "2", "--out", tmp_path / "run", "--json")
    assert run.code == 0
    assert ramify(capsys, "check", tmp_path / "run").code == 0


@pytest.mark.slow
def test_what_a_plan_set_is_planned_for_anew(capsys: pytest.CaptureFixture[str]):
    said = ramify(capsys, *SMALL, "--set", "growth.prune=task", "--set", "growth.keep=0.3")
    assert said.code == 0 and "advice: " in said.out


@pytest.mark.slow
def test_a_plan_is_one_object_of_json(capsys: pytest.CaptureFixture[str]):
    said = ramify(capsys, *SMALL, "--json")
    plan = json.loads(said.out)
    assert plan["schema"] == "ramify.plan/1"
    assert plan["num_problems"] == 8 and plan["aim"] == "gradient"
    assert plan["pilot"]["children"][0] == 4
    assert plan["advice"][-1].startswith("advice: ")
    assert plan["budget"] == pytest.approx(120), "where only sampled tokens cost, the budget is the tokens asked for"
    assert plan["cost"]["low"] <= plan["cost"]["value"] <= plan["cost"]["high"]
    assert plan["cost"]["value"] == pytest.approx(120, rel=0.03)


@pytest.mark.slow
def test_a_fork_that_is_not_certain_enough_is_named(capsys: pytest.CaptureFixture[str]):
    said = ramify(capsys, "plan", "--task", "hops", "--budget", "decode_tokens=160", "--pilot", "30", "--json")
    plan = json.loads(said.out)
    assert [depth["call"] for depth in plan["depths"]][:2] == ["fork", "fork"]
    assert len(plan["shape"]["children"]) == 1
    assert any(line.startswith("step 1, 2: a fork is better than none") for line in plan["advice"])


@pytest.mark.slow
def test_the_pilot_of_a_stated_run_takes_a_twentieth_of_its_tokens(capsys: pytest.CaptureFixture[str]):
    budget = ("--budget", "decode_tokens=200", "--prompts", "200")
    plan = json.loads(ramify(capsys, "plan", *budget, "--set", "task.split=heldout", "--json").out)
    assert plan["pilot"]["decode_tokens"] < 1.3 * 0.05 * 200 * 200


def test_the_same_return_everywhere_leaves_nothing_to_plan(capsys: pytest.CaptureFixture[str]):
    said = ramify(capsys, *SMALL, "--engine", "scripted", "--set", "growth.max_response_tokens=20")
    assert said.code == 0
    assert "all paths of a problem had the same return" in said.out
    assert "do not fork" in said.out


@pytest.mark.slow
def test_an_engine_that_bills_its_context_alone_is_planned_for(capsys: pytest.CaptureFixture[str]):
    prices = ("--set", "engine.prices.prompt=1.0", "--set", "engine.prices.output=0.0")
    said = ramify(capsys, *SMALL, *prices, "--prices", "engine")
    assert said.code == 0 and "advice: " in said.out
    free = ("--set", "engine.prices.prompt=0.0", "--set", "engine.prices.output=0.0")
    said = ramify(capsys, *SMALL, *free, "--prices", "engine")
    assert said.code == 2 and "nothing costs anything" in said.err


@pytest.mark.slow
def test_tools_that_cannot_branch_give_chains_and_the_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "mine.py").write_text(STUCK)
    said = ramify(capsys, *SMALL, "--task", f"{tmp_path / 'mine.py'}:Stuck")
    assert said.code == 0
    assert "the state of calculator cannot be branched" in said.out
    assert "do not fork" in said.out


STUCK = """
from dataclasses import dataclass, field
from ramify.tasks.countdown import Countdown
from ramify.tools.calculator import Calculator

class OneWay(Calculator):
    branching = "refuse"

class Stuck(Countdown):
    def __init__(self):
        super().__init__(tools=(OneWay(),))
"""


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("plan",), "--budget decode_tokens=N"),
        ((*SMALL, "--pilot", "1"), "intervals are over problems"),
        (
            ("plan", "--budget", "decode_tokens=100", "--prompts", "2"),
            "plan for a larger run, or say how many problems the pilot has",
        ),
        ((*SMALL, "--prices", "engine"), "this engine has no prices"),
    ],
)
def test_what_cannot_be_planned_is_refused(flags: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]):
    said = ramify(capsys, *flags)
    assert said.code == 2
    assert message in said.err
