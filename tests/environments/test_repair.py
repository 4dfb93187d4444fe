"""The environment `repair`: repositories that are all different, repairs that score, and tests that stay hidden."""

import ast
import asyncio
import json
import shlex
import shutil
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import cache
from typing import Any

import pytest

import ramify
from ramify.cli.main import main
from ramify.core.branch import Branch
from ramify.core.codec import ByteCodec
from ramify.core.environment import AgentTurn, Observation
from ramify.core.errors import ConfigError
from ramify.core.judge import Verdict
from ramify.core.problem import Problem
from ramify.core.tree import Tree
from ramify.environments.repair import FILES, NUM_TESTS, TESTS, CodeRepair, RepairEpisode, share_passed
from ramify.environments.repair_functions import FUNCTIONS
from ramify.environments.repair_repositories import PlantedBug, Repository, repositories, split_of
from ramify.environments.task import EnvironmentTask
from ramify.testing import Scripted, check_environment
from ramify.testing.scripts import ScriptedTurn
from ramify.workspaces.shell import ForkScore

needs_bubblewrap = pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap")
NO_WORDS = Branch(ByteCodec(is_exact=True), 0, ())
TEST = "python3 -m unittest"


def pair(split: str = "train", seed: int = 0, num_bugs: int | None = None) -> tuple[Problem, Repository]:
    """A problem and its repository."""
    (problem,) = CodeRepair(num_bugs=num_bugs).problems(split, 1, seed)
    (repository,) = repositories(split, 1, seed, num_bugs=num_bugs)
    return problem, repository


def fix(bug: PlantedBug) -> str:
    """A command that repairs a bug."""
    code = (
        f"from pathlib import Path; p = Path({bug.path!r}); t = p.read_text(); assert {bug.wrong!r} in t; "
        f"p.write_text(t.replace({bug.wrong!r}, {bug.right!r}))"
    )
    return f"python3 -c {shlex.quote(code)}"


def fixes(repository: Repository) -> str:
    return " && ".join(map(fix, repository.bugs))


# -- the repositories --------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_problems_are_distinct_and_a_seed_gives_the_same():
    environment = CodeRepair()
    train, again, other = (environment.problems("train", 60, seed) for seed in (0, 0, 1))
    heldout = environment.problems("heldout", 20, 0)
    assert train == again
    uids = [problem.uid for problem in (*train, *other, *heldout)]
    assert len(set(uids)) == len(uids)
    assert {split_of(problem.uid.split()[1]) for problem in heldout} == {"heldout"}
    assert len({json.dumps(problem.public[FILES]) for problem in train}) == 60


def test_repositories_are_small_packages_with_one_or_two_bugs():
    for each in repositories("train", 100, 3):
        assert 3 <= len([path for path in each.files if path.startswith(f"{each.package}/")]) <= 5
        assert 1 <= len(each.bugs) <= 2 and len(each.hidden) >= 6
        assert all(repr(ast.literal_eval(case.expected)) == case.expected for case in each.hidden)
        assert all(bug.wrong in each.files[bug.path] and bug.right != bug.wrong for bug in each.bugs)
        assert {f"test_{bug.function}" for bug in each.bugs} <= set(each.failing)
        for bug in each.bugs:
            assert any(case.shows for case in each.hidden if case.function == bug.function)
    assert {len(each.bugs) for each in repositories("train", 20, 3, num_bugs=2)} == {2}


@pytest.mark.slow
def test_every_bug_is_planted_and_leaves_the_docstring():
    planted = {(bug.function, bug.wrong) for each in repositories("train", 1500, 0) for bug in each.bugs}
    for function in FUNCTIONS:
        constant, *others = function.constants
        source = function.source.format(k=constant)
        for right, wrong in function.bugs:
            bad = source.replace(right.format(k=constant), wrong.format(k=constant, other=(others or [constant])[0]), 1)
            assert bad != source and bad.split('"""')[1] == source.split('"""')[1]
        found = {wrong for name, wrong in planted if name == function.name}
        assert len(found) >= len(function.bugs), function.name


def test_no_hidden_test_is_public():
    problem, repository = pair()
    public = problem.question + json.dumps(dict(problem.public))
    assert problem.secret[NUM_TESTS] == len(repository.hidden)
    assert TESTS not in problem.for_agents().secret and "Hidden" not in public
    assert not any(f"{case.function}{case.arguments}" in public for case in repository.hidden)


def test_options_and_splits_that_are_not_known_raise():
    for options, said in (
        ({"num_bugs": 3}, "1 to 2 bugs"),
        ({"max_commands": 0}, "at least 1"),
        ({"shell": {"timeout_s": 0}}, "timeout_s"),
    ):
        with pytest.raises(ConfigError, match=said):
            CodeRepair(**options)
    with pytest.raises(ConfigError, match="'train' and 'heldout'"):
        CodeRepair().problems("test", 1, 0)


@pytest.mark.parametrize(
    ("output", "exit_code", "share"),
    [
        ("Ran 4 tests in 0.1s\n\nOK\n", 0, 1.0),
        ("Ran 4 tests in 0.1s\n\nFAILED (failures=1, errors=2)\n", 1, 0.25),
        ("Ran 3 tests in 0.1s\n\nOK\n", 0, 0.0),
        ("", 0, 0.0),
        ("Ran 4 tests in 0.1s\n\nOK\n", None, 0.0),
        ("Ran 4 tests in 0.1s\n\nOK\n", 137, 0.0),
    ],
)
def test_the_share_is_what_unittest_says_of_all_tests(output: str, exit_code: int | None, share: float):
    assert share_passed(ForkScore(exit_code, output, "ok"), 4) == share


# -- one episode -------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def opened(problem: Problem, **options: Any) -> AsyncIterator[RepairEpisode]:
    environment = CodeRepair(**options)
    try:
        yield await environment.open(problem, 0)
    finally:
        await environment.let_go()


async def run(episode: RepairEpisode, command: str) -> Observation:
    return await episode.step(AgentTurn(tool="shell", arguments=command), 0)


async def scored(problem: Problem, commands: Sequence[str], **options: Any) -> Verdict:
    async with opened(problem, **options) as episode:
        for command in commands:
            await run(episode, command)
        verdict = await episode.score(NO_WORDS, problem)
        assert verdict is not None
        return verdict


@pytest.mark.slow
@needs_bubblewrap
@pytest.mark.parametrize("seed", range(4))
async def test_a_repair_scores_1_and_none_scores_less(seed: int):
    problem, repository = pair(seed=seed)
    async with opened(problem) as episode:
        before = await run(episode, TEST)
        assert before.status == "error" and all(f"FAIL: {name}" in before.text or f"ERROR: {name}" in before.text
                                                for name in repository.failing)  # fmt: skip
        verdict = await episode.score(NO_WORDS, problem)
        assert verdict is not None and verdict.value == 0 and verdict.parts["passed"] < 1
        assert (await run(episode, fixes(repository))).status == "ok"
        after = await run(episode, TEST)
        assert after.status == "ok" and " in 0." not in after.text
        verdict = await episode.score(NO_WORDS, problem)
        assert verdict == Verdict(1.0, {"passed": 1.0, "commands": 3.0})


@needs_bubblewrap
async def test_one_repair_of_two_passes_a_part_of_the_tests():
    problem, repository = pair(num_bugs=2)
    verdict = await scored(problem, [fix(repository.bugs[0])])
    assert verdict.value == 0 and 0 < verdict.parts["passed"] < 1


@needs_bubblewrap
async def test_a_score_leaves_no_hidden_test_on_the_branch():
    problem, _ = pair()
    async with opened(problem) as episode:
        before = await run(episode, "find /w /tmp | sort")
        await episode.score(NO_WORDS, problem)
        after = await run(episode, "find /w /tmp | sort")
        assert after.text == before.text and "hidden" not in after.text
        assert episode.digest() == await episode.session.digest()
        assert (await run(episode, "grep -rl Hidden /w /tmp")).text == "[exit code 1]"


BAD_REPAIRS = {
    "edits the visible test": "echo > test_*.py; python3 -m unittest || true",
    "deletes everything": "rm -rf /w/* /tmp/*",
    "closes the folder": "chmod 000 /w",
    "leaves at import": "for f in */*.py; do echo 'import os; os._exit(0)' >> $f; done",
    "says that the tests pass": "echo 'print(\"Ran 12 tests in 0.1s\\n\\nOK\")' >> $(ls -d */)__init__.py",
    "puts a unittest of its own": "echo 'raise SystemExit(0)' | tee unittest.py subprocess.py sitecustomize.py",
}


@needs_bubblewrap
@pytest.mark.parametrize("command", BAD_REPAIRS.values(), ids=BAD_REPAIRS)
async def test_a_bad_repair_scores_0(command: str):
    problem, _ = pair()
    assert (await scored(problem, [command])).value == 0


@needs_bubblewrap
async def test_a_folder_without_room_for_the_tests_scores_0():
    problem, _ = pair()
    async with opened(problem, max_commands=100, shell={"max_files": 20}) as episode:
        while (await run(episode, "touch f$(ls | wc -l)")).status == "ok":
            pass
        verdict = await episode.score(NO_WORDS, problem)
        assert verdict is not None and verdict.value == 0


@needs_bubblewrap
async def test_files_that_stand_in_for_unittest_spoil_no_right_repair():
    problem, repository = pair()
    shadow = "echo 'raise SystemExit(1)' | tee unittest.py sitecustomize.py conftest.py"
    assert (await scored(problem, [fixes(repository), shadow])).value == 1


@pytest.mark.slow
@needs_bubblewrap
async def test_code_that_loops_for_ever_scores_0_in_time():
    problem, _ = pair()
    began = time.monotonic()
    loop = "for f in */__init__.py; do echo 'while True: pass' >> $f; done"
    assert await scored(problem, [loop], shell={"timeout_s": 2.0}) == Verdict(0.0, {"passed": 0.0, "commands": 1.0})
    assert time.monotonic() - began < 20


@pytest.mark.slow
@needs_bubblewrap
async def test_the_last_command_truncates_and_a_timeout_is_no_command():
    problem, _ = pair()
    async with opened(problem, max_commands=2, shell={"timeout_s": 1.0}) as episode:
        assert (await run(episode, "sleep 30")).status == "timeout"
        ends = [(await run(episode, command)).end for command in ("false", "true")]
        assert ends == [None, "truncated"] and episode.num_commands == 2


# -- trees -------------------------------------------------------------------------------------------------------------

PROBLEMS = 2
SEED = 5


@cache
def known() -> dict[str, tuple[Problem, Repository]]:
    """Question -> its problem and repository, for the problems of these trees."""
    pairs = zip(CodeRepair().problems("train", PROBLEMS, SEED), repositories("train", PROBLEMS, SEED), strict=True)
    return {problem.question: (problem, repository) for problem, repository in pairs}


def agent(turn: ScriptedTurn) -> str:
    """Read the bugs, then repair or not as the seed says and leave a file of its own, then look and test, then end."""
    repository = next(each for question, (_, each) in known().items() if question in turn.context)
    match turn.context.count("</shell>"):
        case 0:
            command = f"cat {' '.join(bug.path for bug in repository.bugs)}"
        case 1:
            repairs = f"{fixes(repository)} && " if turn.seed % 2 else ""
            command = f"{repairs}touch mine_{turn.seed % 100_000}"
        case 2:
            command = f"ls; {TEST} 2>&1 | tail -1"
        case _:
            return "It is done."
    return f"<shell>{command}</shell>"


def idle(turn: ScriptedTurn) -> str:
    return "I leave it."


def grown(script: Any, preset: str, num_problems: int = PROBLEMS) -> Any:
    problems = [problem for problem, _ in known().values()][:num_problems]
    options: dict[str, Any] = {"seed": SEED, "growth.max_response_tokens": 6000, "max_failed_share": 0.0}
    task = EnvironmentTask(CodeRepair(shell={"timeout_s": 100.0}))  # of a machine with other work
    return ramify.rollout_sync(problems, task=task, preset=preset, engine=Scripted(script), **options)


def leaves(rollout: Any) -> list[tuple[Tree, int]]:
    return [(tree, leaf) for tree in rollout.trees for leaf in tree.leaves()]


@pytest.mark.slow
@needs_bubblewrap
@pytest.mark.parametrize("preset", ["chains", "arpo", "offline"])
def test_siblings_repair_apart_and_get_what_they_earned(preset: str):
    rollout = grown(agent, preset, 1 if preset == "arpo" else PROBLEMS)
    rewards: set[float | None] = set()
    for tree, leaf in leaves(rollout):
        calls = tree.branch(leaf).tool_calls
        commands = " ".join(call.arguments for call in calls)
        own = {word for word in commands.split() if word.startswith("mine_")}
        listed = {word for call in calls for word in call.result.split() if word.startswith("mine_")}
        assert len(own) == 1 and listed == own
        wanted = 1.0 if "write_text" in commands else 0.0
        assert tree.reward(leaf) == wanted
        assert calls[-1].result.endswith("OK\n") == (wanted == 1.0)
        score = tree.reward_score(leaf)
        assert score.is_oracle and dict(score.parts)["commands"] == 3
        rewards.add(wanted)
    assert rewards == {0.0, 1.0}


@pytest.mark.slow
@needs_bubblewrap
@pytest.mark.parametrize("preset", ["chains", "arpo", "offline"])
def test_an_agent_that_does_nothing_gets_0(preset: str):
    assert {tree.reward(leaf) for tree, leaf in leaves(grown(idle, preset, 1))} == {0.0}


@pytest.mark.slow
@needs_bubblewrap
def test_no_text_of_a_tree_holds_a_hidden_test():
    for tree in grown(agent, "arpo", 1).trees:
        texts = [tree.codec.decode(s.ids) for node in range(len(tree)) for s in tree.segments(node)]
        assert texts and not any("hidden_" in text or "CASES" in text for text in texts)


@pytest.mark.slow
@needs_bubblewrap
def test_it_keeps_the_contract_of_environments():
    check_environment(CodeRepair, num_turns=4)


@pytest.mark.slow
@needs_bubblewrap
def test_env_check_knows_it_by_name(capsys: pytest.CaptureFixture[str]):
    assert main(["env", "check", "repair", "--turns", "3", "--problems", "1"]) == 0
    assert "every state has a digest" in capsys.readouterr().out


def test_a_machine_without_bubblewrap_is_named_before_the_run(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ConfigError, match="bubblewrap"):
        CodeRepair().check_start()
    assert asyncio.run(CodeRepair().let_go()) is None
