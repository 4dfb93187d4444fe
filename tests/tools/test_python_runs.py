"""Runs whose steps are code: what a branch's interpreter holds, what the model is shown, and machines without walls."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.cli.commands import ramify
from tests.runner.parts import Small, only_leaf

from ramify.config.run_config import GrowthConfig, RunConfig, StrategyConfig
from ramify.core.branch import Branch
from ramify.core.judge import Verdict
from ramify.core.problem import Problem
from ramify.core.tree import Tree
from ramify.formats.arpo import arpo
from ramify.runner.library import Rollout, rollout
from ramify.testing.scripted import Scripted
from ramify.testing.scripts import Rule, ScriptedTurn
from ramify.tools.python import Python

GROWTH = GrowthConfig(max_response_tokens=4000, max_tool_calls=8)
CHAIN = StrategyConfig(options={"n": 1})
TREES = StrategyConfig(name="tree_grpo", options={"num_trees": 2, "num_nodes": 3})
ENGINE_FILE = """
from dataclasses import replace

from ramify.testing.scripted import SCRIPTED, Scripted


def say(turn):
    return "<answer>42</answer>" if "<result>" in turn.context else "<python>6 * 7</python>"


class Clerk(Scripted):
    def __init__(self):
        super().__init__(say, capabilities=replace(SCRIPTED, context_length=32_768))
"""


def adding(turn: ScriptedTurn) -> str:
    """Make a list, add to it twice by a number of the branch's own, then look at it and answer."""
    done = turn.context.count("<result>")
    if done in (1, 2):
        return f"<python>seen.append({turn.seed % 1000})\nprint(len(seen), seen)</python>"
    return {0: "<python>seen = []</python>", 3: "<python>seen</python>"}.get(done, "<answer>3</answer>")


class Graded:
    """1 for an answer, -1 for a path that was given up."""

    name = "graded"
    is_oracle = False

    async def judge(self, branches: Sequence[Branch], problem: Problem) -> list[Verdict]:
        return [Verdict(1.0 if "<answer>" in branch.said else -1.0) for branch in branches]


class Strict(Small):
    """Gives a path up at its third error in a row."""

    def prune(self, branch: Branch) -> str | None:
        last = [call.status for call in branch.tool_calls[-3:]]
        return "tool_errors: three in a row" if last == ["error"] * 3 else None


async def grown(rule: Rule, *, task: type[Small] = Small, growth: GrowthConfig = GROWTH, **config: Any) -> Rollout:
    made = task(format=arpo({"python": "python"}), tools=(Python(preload=()),), judges=(Graded(),))
    return await rollout(config=RunConfig(growth=growth, **config), engine=Scripted(rule), task=made)


def added(tree: Tree, leaf: int) -> list[int]:
    """What the calls of a branch add, by their code."""
    return [int(n) for call in tree.branch(leaf).tool_calls for n in re.findall(r"append\((\d+)\)", call.arguments)]


@pytest.mark.covers("S4.4")
async def test_a_step_s_code_runs_behind_that_of_its_branch_and_of_no_other() -> None:
    (tree,) = (await grown(adding, strategy=TREES)).trees
    leaves = tree.leaves()
    assert len(leaves) >= 6
    for leaf in leaves:
        own = added(tree, leaf)
        first, *steps, last = tree.branch(leaf).tool_calls
        assert (first.status, last.result) == ("empty", f"{own!r}\n")
        assert [call.result for call in steps] == [f"{n} {own[:n]!r}\n" for n in range(1, len(own) + 1)]
    assert len({tuple(added(tree, leaf)) for leaf in leaves}) > 2
    calls = [tree.branch(leaf).tool_calls for leaf in leaves]
    assert any(one[0] is other[0] and one[1] is not other[1] for one in calls for other in calls), "some forked inside"


@pytest.mark.covers("S4.4")
async def test_what_code_prints_is_the_observation_and_nobody_s_own_words() -> None:
    tree, leaf = only_leaf(await grown(adding, strategy=CHAIN))
    branch = tree.branch(leaf)
    shown = [piece.segment for piece in branch.pieces if piece.segment.tool_call is not None]
    for segment in shown:
        assert segment.tool_call is not None
        text = segment.tool_call.result or "Tool(python) returned empty output."
        assert branch.codec.decode(segment.ids) == f" <result>\n{text}\n</result>"
        assert (segment.origin, segment.logprobs) == ("given", None)
    assert len(shown) == 4
    assert tree.spent()["policy"].tool_calls == 4


@pytest.mark.covers("S4.4")
async def test_an_error_is_shown_and_so_many_in_a_row_end_the_path() -> None:
    codes = ("x = 1", "x / 0", "missing", "x", "x.y", "def", "raise SystemError(x)")

    def failing(turn: ScriptedTurn) -> str:
        return f"<python>{codes[turn.context.count('<result>')]}</python>"

    growth = GrowthConfig(max_response_tokens=8000, max_tool_calls=9, prune="task")
    tree, leaf = only_leaf(await grown(failing, task=Strict, growth=growth, strategy=CHAIN))
    calls = tree.branch(leaf).tool_calls
    assert [call.status for call in calls] == ["empty", "error", "error", "ok", "error", "error", "error"]
    errors = ["ZeroDivisionError", "NameError", "AttributeError", "SyntaxError", "SystemError: 1"]
    told = [call.result for call in calls if call.status == "error"]
    assert all(said in result for said, result in zip(errors, told, strict=True))
    assert all(call.result in tree.branch(leaf).transcript for call in calls)
    assert (tree.stop(leaf), tree.reward(leaf)) == ("tool_errors", -1.0)


def test_a_saved_run_is_read_and_a_new_one_refused_where_bubblewrap_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "engine.py").write_text(ENGINE_FILE, "utf-8")
    options = ("--task", "ledgers", "--engine", f"{tmp_path}/engine.py:Clerk", "--prompts", 1, "--strategy", "chains")
    rules = ("--set", "growth.max_response_tokens=4000", "--set", "strategy.options.n=2")
    run = tmp_path / "run"
    assert ramify(capsys, "rollout", *options, *rules, "--out", run).code == 0
    with monkeypatch.context() as bare:
        bare.setenv("PATH", str(tmp_path))
        assert "python" in ramify(capsys, "show", run, 0).out
        assert ramify(capsys, "check", run, "--json").json["breaches"] == []
        assert "2 rows" in ramify(capsys, "export", run, "--to", "jsonl", "--out", tmp_path / "rows").out
        refused = ramify(capsys, "rollout", *options, *rules, "--out", tmp_path / "new")
        found = {f["name"]: f for f in ramify(capsys, "doctor", "--json").json["findings"]}["sandbox"]
    assert refused.code == 3
    assert "isolation='strict' lacks its outermost wall, bubblewrap: apt-get install bubblewrap" in refused.err
    assert (found["mark"], "apt-get install bubblewrap" in found["text"]) == ("missing", True)
    assert not (tmp_path / "new").exists()
