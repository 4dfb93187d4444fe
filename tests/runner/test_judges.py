"""Judges of a configuration: found, checked before the start, asked on demand, and never paid for twice."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.faults.test_kill import exported, journal, killed
from tests.runner.parts import Right, Small

from ramify.config.configure import from_toml, resolve, to_toml
from ramify.config.run_config import JudgeConfig, RunConfig, StrategyConfig
from ramify.core.branch import Branch
from ramify.core.errors import ConfigError
from ramify.core.problem import Problem
from ramify.judges.exact import Exact
from ramify.judges.function import FunctionJudge
from ramify.judges.llm import LlmJudge
from ramify.runner.build import prepared_run
from ramify.runner.folder import begin, resume
from ramify.runner.library import rollout_sync
from ramify.runner.run import Run
from ramify.testing.policies import chains
from ramify.testing.scripted import Scripted
from ramify.testing.scripts import ScriptedTurn

MINE = """
from ramify.core.judge import Verdict

def longest(text, problem):
    return float(len(text))

async def curious(text, problem):
    return float(len(problem.secret))

class Mine:
    is_oracle = False

    def __init__(self, *, name, size: int = 1):
        self.name, self.size = name, size

    async def judge(self, branches, problem):
        return [Verdict(float(self.size)) for _ in branches]

class Other(Mine):
    def __init__(self, name):
        self.name, self.size = "other", 1

class NoJudge:
    name = "none"
"""


@pytest.fixture
def mine(tmp_path: Path) -> str:
    path = tmp_path / "mine.py"
    path.write_text(MINE)
    return str(path)


def best_of(judge: str, *, n: int = 3, oracle: str = "refused") -> StrategyConfig:
    return StrategyConfig(name="best_of_n", options={"n": n, "judge": judge, "oracle": oracle})


def scored(judge: JudgeConfig, *, oracle: str = "refused") -> list[float | None]:
    """What a judge called `mine` said of three leaves."""
    config = RunConfig(strategy=best_of("mine", oracle=oracle), judges={"mine": judge})
    questions = [Problem("p", "q?", secret={"gold": "4", "more": "5"})]
    (tree,) = rollout_sync(questions, config=config, engine=Scripted(chains(0)), task=Small()).trees
    assert all(tree.reward(leaf) in (0.0, 1.0) for leaf in tree.leaves()), "the reward is the task's"
    return [tree.scores(leaf)[-1].value for leaf in tree.leaves()]


def test_a_function_of_a_file_judges_by_its_name_or_as_an_option(mine: str) -> None:
    length = float(len("<answer>0</answer>") + 1)
    for judge in (
        JudgeConfig(kind=f"{mine}:longest"),
        JudgeConfig(kind="function", options={"function": f"{mine}:longest", "deadline_s": 3}),
    ):
        assert all(value in (length, length - 1) for value in scored(judge))


def test_only_a_judge_declared_an_oracle_is_handed_the_secret(mine: str) -> None:
    assert scored(JudgeConfig(kind=f"{mine}:curious")) == [0.0] * 3
    told = JudgeConfig(kind=f"{mine}:curious", options={"is_oracle": True})
    assert scored(told, oracle="declared") == [2.0] * 3


def test_a_class_of_a_file_takes_its_options(mine: str) -> None:
    assert scored(JudgeConfig(kind=f"{mine}:Mine", options={"size": 7})) == [7.0] * 3


@pytest.mark.parametrize(
    ("judge", "message"),
    [
        ({"kind": "lm"}, "unknown judge 'lm'; did you mean 'llm'"),
        ({}, "unknown judge 'grader'"),
        ({"kind": "MINE:longst"}, "did you mean 'longest'"),
        ({"kind": "MINE:Mine", "options": {"sise": 1}}, "did you mean 'size'"),
        ({"kind": "MINE:Mine", "options": {"size": "1"}}, "grader.options.size"),
        ({"kind": "MINE:Mine", "options": {"name": "x"}}, "given by the run"),
        ({"kind": "MINE:longest", "options": {"deadline": 1}}, "did you mean 'deadline_s'"),
        ({"kind": "function"}, "needs the option function"),
        ({"kind": "function", "options": {"function": "nowhere.py:f"}}, "there is no file"),
        ({"kind": "llm", "options": {"mod": "vote"}}, "did you mean 'mode'"),
        ({"kind": "process", "options": {"bse_url": "http://h"}}, "did you mean 'base_url'"),
        ({"knd": "llm"}, "did you mean 'kind'"),
    ],
)
def test_what_is_wrong_with_a_judge_is_said_with_the_configuration(
    mine: str, judge: dict[str, Any], message: str
) -> None:
    judge = json.loads(json.dumps(judge).replace("MINE", mine))
    with pytest.raises(ConfigError, match=message):
        resolve(flags={"judges": {"grader": judge}})


@pytest.mark.parametrize(("kind", "message"), [("Other", "calls itself 'other'"), ("NoJudge", "it lacks is_oracle")])
def test_a_class_that_is_no_judge_of_its_name_is_refused(mine: str, kind: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Run(
            prepared_run(
                RunConfig(judges={"mine": JudgeConfig(kind=f"{mine}:{kind}")}), ["q"], engine=Scripted(), task=Small()
            )
        )


def test_a_judge_called_as_the_tasks_takes_its_place_at_leaves_unless_it_asks_a_model(mine: str) -> None:
    config = RunConfig(judges={"right": JudgeConfig(kind=f"{mine}:Mine", options={"size": 9})})
    (tree,) = rollout_sync(["q?"], config=config, engine=Scripted(chains(0)), task=Small()).trees
    assert {tree.reward(leaf) for leaf in tree.leaves()} == {9.0}
    with pytest.raises(ConfigError, match="call it by another name"):
        Run(prepared_run(RunConfig(judges={"right": JudgeConfig(kind="llm")}), ["q"], engine=Scripted(), task=Small()))


def test_exact_reads_answers_by_the_format_of_the_run() -> None:
    run = Run(prepared_run(RunConfig(judges={"exact": JudgeConfig()}), ["q"], engine=Scripted(), task=Small()))
    judge = run.prepared.judging.judges["exact"]
    assert isinstance(judge, Exact) and judge.format is run.prepared.format
    assert run.prepared.judging.leaf == ("right",)


def test_files_are_anchored_and_the_configuration_reads_back(mine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(mine).parent)
    judges = {
        "a": {"kind": "mine.py:longest"},
        "b": {"kind": "function", "options": {"function": "mine.py:longest"}},
        "c": {"kind": "llm", "options": {"mode": "vote"}},
    }
    config = resolve(flags={"judges": judges}).config
    assert config.judges["a"].kind == f"{mine}:longest"
    assert config.judges["b"].options == {"function": f"{mine}:longest"}
    assert from_toml(to_toml(config)) == config


def test_the_kinds_of_judges_that_need_nothing_are_there() -> None:
    judges = {"llm": JudgeConfig(), "f": JudgeConfig(kind="tests/runner/test_judges.py:short")}
    run = Run(prepared_run(RunConfig(judges=judges), ["q"], engine=Scripted(), task=Small(judges=(Right(),))))
    assert isinstance(run.prepared.judging.judges["llm"], LlmJudge) and isinstance(
        run.prepared.judging.judges["f"], FunctionJudge
    )


def short(branch: Branch, problem: Problem) -> float:
    return -float(len(branch))


# -- kill and resume --------------------------------------------------------------------------------------------------


class Counted(Scripted):
    """Answers, and grades that are corrected once or twice; each call is a line in a file."""

    def __init__(self, log: str) -> None:
        super().__init__(_says)
        self._log = Path(log)

    async def generate(self, request: Any) -> Any:
        with self._log.open("a") as log:
            log.write(f"{request.request_id} {len(request.ids)}\n")
        return await super().generate(request)


def _says(turn: ScriptedTurn) -> str:
    if "Problem:" not in turn.context:
        return f"<answer>{turn.seed % 7}</answer>"
    return ("eighty", "what?", "41")[min(2, turn.seed % 2 + turn.context.count("Error: "))]


def judged_run(folder: Path) -> RunConfig:
    data = folder / "data.jsonl"
    data.write_text("".join(json.dumps({"question": f"q{i}?", "answer": str(i)}) + "\n" for i in range(4)))
    return resolve(
        flags={
            "data": {"path": str(data), "answer": "answer"},
            "prompts": 4,
            "engine": {"name": f"{__file__}:Counted", "options": {"log": str(folder / "calls")}},
            "strategy": {"name": "best_of_n", "options": {"n": 4, "judge": "grader"}},
            "judges": {"grader": {"kind": "llm", "options": {"mode": "self_reward"}}},
            "max_trees": 1,
        }
    ).config


@pytest.mark.slow
@pytest.mark.parametrize("after", [5, 9, 12, 20, 33, 47, 60, 75, 88, 100])
def test_no_reply_that_a_killed_run_had_paid_for_is_asked_for_again(tmp_path: Path, after: int) -> None:
    config, calls = judged_run(tmp_path), tmp_path / "calls"
    begin(config, tmp_path / "whole")
    num_whole = len(calls.read_text().splitlines())
    assert len(set(calls.read_text().splitlines())) == num_whole
    assert killed(config, tmp_path / "killed", after=after)
    num_recorded = journal(tmp_path / "killed").read_bytes().count(b'"record":"grown"')
    calls.unlink()
    resume(tmp_path / "killed")
    assert len(calls.read_text().splitlines() if calls.exists() else []) == num_whole - num_recorded
    assert exported(tmp_path / "killed") == exported(tmp_path / "whole")
