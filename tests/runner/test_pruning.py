"""Pruning by a judge of steps: what it gives is recorded and paid for, and its faults give nothing up."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from tests.cli.commands import ramify
from tests.runner.parts import OneChain, Plan, Small, grown, only_leaf
from tests.runner.test_grower import ANSWER, CALL, said

from ramify.config.run_config import GrowthConfig, JudgeConfig
from ramify.core.branch import Branch
from ramify.core.command import Close, Command, Grow
from ramify.core.errors import ConfigError, JudgeError
from ramify.core.judge import Verdict
from ramify.core.limits import Limits
from ramify.core.problem import Problem
from ramify.core.tree import ROOT, Tree
from ramify.credit import forest_of
from ramify.runner.library import Rollout

GROWTH = GrowthConfig(prune="judged_below", prune_options={"below": 0.6}, prune_judge="calls")


@dataclass(frozen=True)
class Calls:
    """Finds a path worth less with every call: 1, 1/2, 1/3, …"""

    name: str = "calls"
    is_oracle: bool = False
    is_down: bool = False

    async def judge(self, branches: Sequence[Branch], problem: Problem) -> list[Verdict]:
        if self.is_down:
            raise JudgeError("nobody is there")
        return [Verdict(1 / max(1, len(branch.tool_calls))) for branch in branches]


def calls(**options: Any) -> dict[str, JudgeConfig]:
    return {"calls": JudgeConfig(kind=f"{__file__}:Calls", options=options)}


def run(plan: type[Plan] = OneChain, growth: GrowthConfig = GROWTH, **fields: Any) -> Rollout:
    return grown(plan, said(CALL, CALL, ANSWER), growth=growth, **{"judges": calls(), **fields})


def values(tree: Tree, node: int) -> list[tuple[str, float | None]]:
    return [(score.judge, score.value) for score in tree.scores(node)]


def test_a_path_that_is_judged_too_low_is_a_leaf_with_its_reward() -> None:
    tree, leaf = only_leaf(run())
    assert (tree.stop(leaf), tree.notes(leaf)["closed"]) == ("closed", "judged 0.5, below 0.6")
    assert tree.reward(leaf) == 0.0
    assert [values(tree, node) for node in tree.path(leaf)[1:]] == [
        [("calls", 1.0)],
        [("calls", 0.5), ("right", 0.0)],
    ]


def test_a_coin_may_let_it_go_on() -> None:
    trees = [run(growth=replace(GROWTH, keep=0.5), seed=seed).trees[0] for seed in range(12)]
    weights = [forest_of(tree).weight.tolist() for tree in trees]
    assert {tuple(weight) for weight in weights} == {(1, 1), (1, 1, 2)}


def test_a_rule_that_is_watched_ends_nothing_and_changes_no_share() -> None:
    tree, leaf = only_leaf(run(growth=replace(GROWTH, keep=1.0)))
    assert (tree.stop(leaf), tree.reward(leaf)) == ("answer", 1.0)
    assert [tree.notes(node).get("kept") for node in tree.path(leaf)[1:]] == [None, 1.0, None]
    forest = forest_of(tree)
    assert not forest.has_coins and set(forest.weight.tolist()) == {1.0}


def test_a_judge_that_is_down_gives_nothing_up() -> None:
    tree, leaf = only_leaf(run(judges=calls(is_down=True)))
    assert (tree.stop(leaf), tree.reward(leaf)) == ("answer", 1.0)
    first = tree.path(leaf)[1]
    assert values(tree, first) == [("calls", None)]
    assert "nobody is there" in tree.notes(first)["judge"]


class StepThenClose(Plan):
    """One step, and the strategy gives the path up behind it."""

    def wanted(self, tree: Tree) -> Sequence[Command] | None:
        return [[Grow(ROOT, until="step")], [Close(1, "enough")], None][len(self.told)]


def test_what_it_gives_is_no_reward() -> None:
    tree, leaf = only_leaf(run(StepThenClose))
    assert values(tree, leaf) == [("calls", 1.0)]
    assert tree.reward(leaf) is None
    tree, leaf = only_leaf(run(task=Small(judges=())))
    assert values(tree, leaf) == [("calls", 0.5)]
    assert tree.reward(leaf) is None


def test_what_it_says_is_paid_for_and_kept_within_the_budget() -> None:
    assert only_leaf(run())[0].spent()["policy"].judge_calls == 3
    short = run(limits=Limits(judge_calls=3), growth=replace(GROWTH, max_turns=2))
    assert (short.report.judge_calls, short.report.leaves) == (2, 1), "the last turn ends, so nobody asks about it"
    shorter = run(limits=Limits(judge_calls=2), growth=replace(GROWTH, max_turns=2))
    assert shorter.report.judge_calls == 0 and not shorter.trees[0].leaves()


@pytest.mark.parametrize(
    ("judge", "told"),
    [
        ({}, "no such judge"),
        (calls(is_oracle=True), "knows the answer"),
        ({"calls": JudgeConfig(kind="llm")}, "asks a model"),
    ],
)
def test_who_may_not_be_asked_is_refused_before_the_start(judge: dict[str, JudgeConfig], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        run(judges=judge)


def test_a_learned_value_prunes_countdown_and_its_run_is_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    value = ("judges.process.kind=value", "growth.prune=judged_below", "growth.prune_judge=process")
    more = ("growth.prune_options.below=0.2", "growth.keep=0.3", "strategy.options.n=4", "prompts=4")
    settings = [part for setting in (*value, *more) for part in ("--set", setting)]
    assert ramify(capsys, "rollout", "--preset", "chains", *settings, "--out", tmp_path / "run").code == 0
    assert ramify(capsys, "check", tmp_path / "run").code == 0
    assert "roulette" in ramify(capsys, "show", tmp_path / "run").out


@pytest.mark.slow
def test_a_plan_is_for_the_rule_of_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    value = ("judges.process.kind=value", "growth.prune=judged_below", "growth.prune_judge=process")
    settings = [part for setting in (*value, "growth.prune_options.below=0.1") for part in ("--set", setting)]
    plan = tmp_path / "plan.toml"
    few = ("--budget", "decode_tokens=120", "--pilot", "12", "--aim", "coverage")
    assert "Pruning would stop" in ramify(capsys, "plan", *few, *settings, "--out", plan).out
    run = ramify(capsys, "rollout", "-c", plan, "--prompts", "2", "--out", tmp_path / "run")
    assert run.code == 0, run.err
    assert ramify(capsys, "check", tmp_path / "run").code == 0
