"""Bad input, each with a clear error, nothing lost, and a test.

Here runs are grown whole, so that what a fault leaves can be looked at: on the tree, in the journal and in the rows.
What is made in one place is tested there; `here` adds what becomes of it in a run.

    bad or unknown configuration        config/test_config.py::test_a_bad_configuration_is_refused_with_what_was_wrong
    row without a question, unknown     tasks/test_data.py::test_a_bad_file_is_refused_with_the_line_and_the_column
    column, one uid twice in a file
    two problems with one uid           here
    prompt longer than the context      runner/test_grower.py::test_a_prompt_without_room_behind_it_is_a_leaf_…
    empty action                        runner/test_grower.py::test_an_empty_call_is_answered_with_an_error_…
    malformed action                    runner/test_grower.py::test_a_malformed_action_is_answered_with_what_is_wrong
    repeated action                     runner/test_grower.py::test_a_repeated_action_is_carried_out_again_unless_…
    tool raises                         runner/test_toolbox.py::test_a_tool_that_raises_crashes_alone, here
    tool hangs                          runner/test_toolbox.py::test_a_tool_that_hangs_times_out_and_…, here
    tool returns 10 MB                  runner/test_toolbox.py::test_ten_megabytes_come_back_as_head_and_tail, here
    tool returns invalid UTF-8,         tools/test_output.py::test_lone_surrogates_are_replaced_wherever_they_are,
    a lone surrogate                    runner/test_toolbox.py::test_junk_is_a_crash_or_readable_text, here
    engine fails, hangs, returns NaN    engines/test_retrying.py, runner/test_sampler.py::test_what_is_unsound_is_no_…,
    logprobs or the wrong number        here
    strategy file does not import       test_plugins.py::test_a_file_that_cannot_be_used_is_named_with_its_line
    strategy cannot be made, raises,    here
    asks nothing, for a closed node,
    a foreign command, draws its own
    randomness
    format or template that names       here
    what is not there
    disk full                           store/test_commit.py::test_a_disk_that_fails_at_any_call_loses_nothing_…, here
    read-only folder                    store/test_store.py::test_a_folder_that_cannot_be_written_is_refused
    store of another version            store/test_journal.py::test_a_store_of_another_version_is_refused_with_both_…
    Ctrl-C once and twice               cli/test_runs.py::test_an_interrupted_run_is_saved_and_goes_on_…, here
"""

import asyncio
import os
import resource
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from tests.faults.test_kill import killed
from tests.runner.parts import OneChain, Small, grown, problems, small_with

from ramify.config.configure import resolve
from ramify.config.run_config import GrowthConfig, RunConfig, StrategyConfig, ToolsConfig
from ramify.core.action import ActionConfig
from ramify.core.errors import ConfigError, ToolError
from ramify.core.limits import Limits
from ramify.core.problem import Problem
from ramify.core.tool import Branching, ToolResult
from ramify.core.tree import Tree
from ramify.formats.arpo import ARPO, arpo
from ramify.rows.jsonl import write
from ramify.rows.row import Row
from ramify.runner.build import prepared_run
from ramify.runner.folder import begin, header_of, resume
from ramify.runner.library import Rollout, rollout
from ramify.runner.recorder import Recorder
from ramify.runner.run import Run
from ramify.runner.saved import Saved
from ramify.runner.scheduler import TooManyFailures
from ramify.store.check import ledger_faults, row_faults, tree_faults
from ramify.store.commit import Writing
from ramify.store.replay import replay
from ramify.store.store import FolderStore, load
from ramify.testing.clock import run_virtual
from ramify.testing.planned_faults import Fault, FaultKind
from ramify.testing.policies import chains
from ramify.testing.scripted import Scripted

ROOT = Path(__file__).parents[2]
FOUR = StrategyConfig(name="chains", options={"n": 4})


def recorded(folder: Path, engine: Scripted, *, task: Small | None = None, **fields: Any) -> tuple[Rollout, list[Tree]]:
    """A run of six trees of four chains in virtual time, and its trees as the journal gives them back."""
    settings: dict[str, Any] = {"strategy": FOUR, "max_failed_share": 1.0, **fields}
    config, task = RunConfig(**settings), task or Small()
    run = Run(prepared_run(config, problems(6), engine=engine, task=task))
    store = FolderStore.create(folder / "run", header_of(run.prepared), "", writing=Writing(durability="os"))
    made = rollout(problems(6), config=config, engine=engine, task=task, observers=[Recorder(store).observe])
    result = run_virtual(made)
    store.close()
    replayed = replay(load(folder / "run").records, run.prepared.codec, run.prepared.rules)
    return result, [replayed[index].tree for index in sorted(replayed)]


def rows_by_uid(result: Rollout) -> dict[str, list[Row]]:
    rows: dict[str, list[Row]] = {}
    for row in result.rows():
        rows.setdefault(row.uid, []).append(row)
    return rows


def assert_nothing_is_lost(result: Rollout, replayed: list[Tree], folder: Path) -> None:
    """The journal holds the trees as they are, every invariant holds and rows can be written."""
    assert result.report.unfinished == {}
    for live, again in zip(result.trees, replayed, strict=True):
        assert [again.stop(n) for n in again.subtree()] == [live.stop(n) for n in live.subtree()]
        assert [again.branch(n).text for n in again.subtree()] == [live.branch(n).text for n in live.subtree()]
        assert [*tree_faults(again)] == []
        assert [*ledger_faults(again, {role: spend.as_dict() for role, spend in live.spent().items()})] == []
        assert [*row_faults(live, rows_by_uid(result).get(live.problem.uid, []))] == []
    assert write(result.rows(), folder / "rows.jsonl") == len(result.rows())


# -- problems, formats, templates -------------------------------------------------------------------------------------


def refused(match: str, **fields: Any) -> None:
    """The run is refused for a reason before its engine is asked for anything."""
    engine, task = Scripted(chains(1)), fields.pop("task", Small())
    questions, plan = fields.pop("questions", problems(2)), fields.pop("plan", OneChain)
    with pytest.raises(ConfigError, match=match):
        Run(prepared_run(RunConfig(**fields), questions, engine=engine, task=task, strategy=plan))
    assert engine.num_calls == 0


def test_two_problems_with_one_uid_are_refused() -> None:
    refused("two problems with one uid: 'a'", questions=[Problem("a", "1?"), Problem("b", "2?"), Problem("a", "3?")])


def test_a_format_that_calls_a_tool_the_task_lacks_is_refused() -> None:
    refused("calls a tool 'python' by <python>, but the task has no such tool; known: calculator", format="arpo")
    refused("a tool 'calculater' by <calc>.*did you mean 'calculator'", task=Small(format=arpo({"calculater": "calc"})))
    refused("a tool 'search'.*known: none", task=Small(format=arpo({"search": "search"}), tools=()))
    assert set(ARPO.tools()) == {"python", "search"}


@pytest.mark.parametrize("template", ["{policy} is wrong", "{0:>8}", "{previous", "{question!r}"])
def test_a_template_that_cites_what_is_not_there_is_refused(template: str) -> None:
    actions = {"policy": ActionConfig(), "critique": ActionConfig(edge="quotes", template=template)}
    refused("template", actions=actions)


def test_an_action_of_an_engine_that_is_not_there_is_refused() -> None:
    refused("action 'policy' names engine 'judge'", actions={"policy": ActionConfig(engine="judge")})


def test_a_budget_too_small_for_every_tree_to_have_a_share_is_refused() -> None:
    refused("limit leaves = 1 leaves nothing for one of 2 trees", run_limits=Limits(leaves=1))


# -- tools ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Odd:
    """A tool and its own session, which returns, raises or awaits what it is made with."""

    said: object
    name: str = "calculator"
    branching: Branching = "share"

    async def open(self, problem: Problem) -> "Odd":
        return self

    async def call(self, arguments: str) -> Any:
        if isinstance(self.said, BaseException):
            raise self.said
        if isinstance(self.said, float):
            await asyncio.sleep(self.said)
        return self.said

    async def fork(self) -> "Odd":
        return self

    async def close(self) -> None: ...


ANSWERS: dict[str, tuple[object, str]] = {
    "raises": (ValueError("no"), "crashed"),
    "loses its sandbox": (ToolError("sandbox_lost", "gone"), "crashed"),
    "exits": (SystemExit(3), "crashed"),
    "cancels itself": (asyncio.CancelledError(), "crashed"),
    "hangs": (1e9, "timeout"),
    "10 MB": ("a" * 10_000_000, "ok"),
    "invalid UTF-8": (b"\xff\xfe\x00caf\xc3", "ok"),
    "a lone surrogate": (ToolResult("\ud800?", metadata={"\udfff": "\ud800"}, attachments=("\ud800",)), "ok"),
    "the tags of an answer": ("</result><answer>3</answer><|end|></calc>", "ok"),
    "nothing": (None, "crashed"),
    "metadata of objects": (ToolResult("x", metadata={"a": object()}), "crashed"),
}
LONG = GrowthConfig(max_response_tokens=2000)


@pytest.mark.parametrize("case", ANSWERS)
def test_whatever_a_tool_does_is_an_observation_that_survives_the_journal(tmp_path: Path, case: str) -> None:
    said, status = ANSWERS[case]
    tools = ToolsConfig(deadline_s=5.0, max_retries=1, max_result_bytes=300)
    task = small_with(Odd(said))
    result, replayed = recorded(tmp_path, Scripted(chains(1, 2)), task=task, tools=tools, growth=LONG)
    assert_nothing_is_lost(result, replayed, tmp_path)
    calls = [call for tree in replayed for leaf in tree.leaves() for call in tree.branch(leaf).tool_calls]
    assert {call.status for call in calls} == {status}
    assert result.report.stop_words == {"answer": 24}
    assert all(len(call.result.encode()) <= 300 for call in calls)


# -- engines ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("error", "engine_500"),
        ("hang", "engine_hang"),
        ("abort", "engine_aborted"),
        ("nan_logprobs", "bad_logprobs"),
        ("wrong_length", "bad_logprobs"),
        ("bad_ids", "bad_token_ids"),
        ("no_tokens", "no_tokens"),
        ("too_many_tokens", "too_many_tokens"),
    ],
)
def test_a_branch_whose_engine_fails_is_masked_and_the_others_go_on(
    tmp_path: Path, kind: FaultKind, reason: str
) -> None:
    clean = grown(None, Scripted(chains(1, 2)), questions=problems(6), strategy=FOUR)
    result, replayed = recorded(tmp_path, Scripted(chains(1, 2), faults=[Fault(kind, share=0.1)]))
    assert_nothing_is_lost(result, replayed, tmp_path)
    failed = [(tree, n) for tree in result.trees for n in tree.subtree() if tree.stop(n) == "engine_error"]
    assert {tree.notes(n)["reason"] for tree, n in failed} == {reason}
    assert result.report.failed_leaves == len(failed)
    assert result.report.leaves == 24 - len(failed)
    assert 0 < len(failed) < 24
    assert "engine_error" not in result.report.stop_words
    untouched = {tree.problem.uid for tree in result.trees} - {tree.problem.uid for tree, _ in failed}
    assert untouched
    was, now = rows_by_uid(clean), rows_by_uid(result)
    for uid in untouched:
        assert [r.ids.tolist() for r in now[uid]] == [r.ids.tolist() for r in was[uid]]
        assert [r.advantages.tolist() for r in now[uid]] == [r.advantages.tolist() for r in was[uid]]


ENGINE = """
from pathlib import Path

from ramify.testing.planned_faults import Fault
from ramify.testing.scripted import Scripted


class Flaky(Scripted):
    "Fails as long as a file is there."

    def __init__(self, flag: str):
        down = Fault("error", when=lambda turn: Path(flag).exists(), is_retryable=False)
        super().__init__(faults=[down])
"""


def test_a_run_stopped_by_failures_goes_on_when_the_engine_is_back(tmp_path: Path) -> None:
    (tmp_path / "engine.py").write_text(ENGINE)
    (tmp_path / "down").touch()
    flags = {
        "prompts": 12,
        "max_trees": 2,
        "engine.name": f"{tmp_path / 'engine.py'}:Flaky",
        "engine.options": {"flag": str(tmp_path / "down")},
    }
    with pytest.raises(TooManyFailures, match="20 of 20 commands failed"):
        begin(resolve(preset="chains", flags=flags).config, tmp_path / "run")
    (tmp_path / "down").unlink()
    report = resume(tmp_path / "run")
    assert (report.trees, report.failed_trees, report.failed_leaves + report.leaves) == (12, 0, 96)
    assert report.failed_leaves == 0
    for tree in Saved.open(tmp_path / "run").trees():
        assert [*tree_faults(tree)] == []


# -- strategies from a file -------------------------------------------------------------------------------------------

STRATEGIES = """
from dataclasses import dataclass

import numpy as np

from ramify import ROOT, Cancel, Close, Fork, Grow, Grown, Phase


@dataclass(frozen=True, slots=True)
class Config:
    pass


class Sound:
    Config = Config
    measures = frozenset()
    is_order_free = False
    post_hoc_reason = ""

    def __init__(self, config, rng):
        self.told = []
        self.num_asked = 0

    def wanted(self, tree):
        return [Grow(ROOT)] if not self.told else None

    def ask(self, tree):
        commands = (self.wanted(tree) or []) if self.num_asked == len(self.told) else []
        self.num_asked += len(commands)
        return commands

    def tell(self, tree, outcome):
        self.told.append(outcome)

    def is_done(self, tree):
        return self.num_asked == len(self.told) and self.wanted(tree) is None

    def phase(self, tree):
        return Phase("build")


def then(*second):
    def wanted(self, tree):
        return [[Grow(ROOT)], list(second)][len(self.told)] if len(self.told) < 2 else None
    return wanted


class Raises(Sound):
    def tell(self, tree, outcome):
        raise OSError("no more")

class AsksNothing(Sound):
    wanted = then()

class GrowsAnEndedPath(Sound):
    def wanted(self, tree):
        return [[Grow(ROOT)], [Grow(self.told[0].tip) if self.told else None]][len(self.told)]

class GrowsAClosedNode(Sound):
    def wanted(self, tree):
        return [[Grow(ROOT, until="step")], [Close(1, "enough")], [Grow(ROOT), Grow(1)]][len(self.told)]

class GrowsWhatIsNotThere(Sound):
    wanted = then(Grow(77))

class AsksForeignCommands(Sound):
    wanted = then("grow", 7)

class ReturnsNoSequence(Sound):
    def ask(self, tree):
        return {Grow(ROOT)} if not self.told else 7

class CancelsWhatIsNotThere(Sound):
    wanted = then(Cancel(9))

class NamesNoAction(Sound):
    wanted = then(Grow(ROOT, action="polcy"))

class ForksOutside(Sound):
    wanted = then(Grow(2, at=9999))

class DrawsItsOwn(Sound):
    def wanted(self, tree):
        return [Grow(ROOT, fork=Fork(1, "mine", score=np.random.default_rng().random()))] if not self.told else None

class CannotBeMade(Sound):
    def __init__(self, config, rng):
        raise LookupError("no weights")

class HasNoAsk:
    Config = Config
"""


TASKS = """
class NoWeights:
    def __init__(self):
        raise FileNotFoundError("judge.bin")


class NoProblems:
    format = None
    tools = judges = ()

    def problems(self, split, num_problems, seed):
        return [][num_problems]

    def prune(self, branch): ...

    def is_same_answer(self, one, other): ...
"""


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("NoWeights", "NoWeights' .*cannot be made with {}: FileNotFoundError: judge.bin"),
        ("NoProblems", "NoProblems' has no problems to give: IndexError: list index out of range"),
    ],
)
def test_a_task_of_the_user_that_breaks_is_refused_before_anything_starts(
    tmp_path: Path, name: str, message: str
) -> None:
    (tmp_path / "tasks.py").write_text(TASKS)
    config = resolve(flags={"engine.name": "scripted", "task.name": f"{tmp_path / 'tasks.py'}:{name}"}).config
    with pytest.raises(ConfigError, match=message):
        begin(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_an_engine_of_the_user_without_its_parts_is_refused_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "engines.py").write_text(
        "class Half:\n    codec = None\n\n    async def generate(self, request): ...\n"
    )
    config = resolve(flags={"engine.name": f"{tmp_path / 'engines.py'}:Half"}).config
    with pytest.raises(ConfigError, match=r"is no engine: it is .*, and lacks capabilities, close"):
        begin(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def config_of(tmp_path: Path, name: str) -> RunConfig:
    (tmp_path / "strategies.py").write_text(STRATEGIES)
    flags = {"prompts": 3, "engine.name": "scripted", "strategy.name": f"{tmp_path / 'strategies.py'}:{name}"}
    return resolve(flags=flags).config


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("Raises", "ContractError: strategy Raises.tell raised OSError: no more"),
        ("AsksNothing", "ContractError: strategy AsksNothing asked for nothing with nothing in flight and is not done"),
        ("GrowsAnEndedPath", "ContractError: cannot grow from node "),
        ("GrowsAClosedNode", "ContractError: cannot grow from node 1: it ended with "),
        ("GrowsWhatIsNotThere", "ContractError: no node 77: this tree has nodes 0 to "),
        (
            "AsksForeignCommands",
            "ContractError: 'grow' is no command; a strategy asks for Grow, Judge, Close",
        ),
        ("ReturnsNoSequence", "it must return a sequence of commands"),
        ("CancelsWhatIsNotThere", "ContractError: cannot cancel command 9: it is not in flight"),
        ("NamesNoAction", "no such action; did you mean 'policy'?"),
        ("ForksOutside", "ContractError: fork position 9999 is not on the branch of node 2"),
    ],
)
def test_a_strategy_that_breaks_its_contract_ends_its_trees_and_keeps_what_they_had(
    tmp_path: Path, name: str, fault: str
) -> None:
    report = begin(config_of(tmp_path, name), tmp_path / "run")
    assert report.failed_trees == 3
    assert all(fault in reason for reason in report.unfinished.values()), report.unfinished
    trees = list(Saved.open(tmp_path / "run").trees())
    assert sum(tree.num_leaves for tree in trees) == report.leaves
    assert name == "ReturnsNoSequence" or report.leaves >= 3
    again = resume(tmp_path / "run")
    assert (again.unfinished, again.leaves) == (report.unfinished, report.leaves)
    assert (again.decode_tokens, again.mean_reward) == (report.decode_tokens, report.mean_reward)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Raises", "AsksNothing", "AsksForeignCommands"])
def test_a_run_killed_around_such_a_fault_comes_to_the_same_end(tmp_path: Path, name: str) -> None:
    config = replace(config_of(tmp_path, name), prompts=1)
    report = begin(config, tmp_path / "whole")
    number = 1
    while killed(config, tmp_path / f"{number}", after=number):
        if number > 1:
            again = resume(tmp_path / f"{number}")
            assert (again.unfinished, again.leaves) == (report.unfinished, report.leaves)
        number += 1
    assert number - 1 == len(load(tmp_path / "whole").records) + 2  # and the header and the seal


def test_a_strategy_that_draws_randomness_of_its_own_is_found_at_its_first_tree(tmp_path: Path) -> None:
    report = begin(config_of(tmp_path, "DrawsItsOwn"), tmp_path / "run")
    (reason,) = report.unfinished.values()
    assert "strategy DrawsItsOwn drew randomness of its own: built and told alike, it asked" in reason


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("CannotBeMade", "CannotBeMade' .*cannot be made: LookupError: no weights"),
        ("HasNoAsk", "HasNoAsk"),
        ("Soud", "has no 'Soud'; did you mean 'Sound'"),
    ],
)
def test_what_is_no_strategy_is_refused_before_anything_starts(tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        begin(config_of(tmp_path, name), tmp_path / "run")
    assert not (tmp_path / "run").exists()


# -- disks and interrupts, in processes of their own ------------------------------------------------------------------

SLOW = """
import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from ramify import Problem, Verdict
from ramify.testing.planned_faults import Delay
from ramify.testing.policies import chains
from ramify.testing.scripted import Scripted
from ramify.formats.arpo import arpo
from ramify.tools.function import FunctionTool


async def stubborn(arguments):
    "Ignores being cancelled."
    print("called", flush=True)
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            print("cancelled", flush=True)


async def kind(arguments):
    return arguments


class Long:
    "Chains of many turns; a random agent that takes its time."

    def __init__(self, tool="kind"):
        self.format = arpo({"calculator": "calc"})
        self.tools = (FunctionTool({"stubborn": stubborn, "kind": kind}[tool], name="calculator"),)
        self.judges = ()

    def problems(self, split, num_problems, seed):
        return [Problem(str(i), f"question {i}") for i in range(num_problems)]

    def prune(self, branch):
        return None

    def is_same_answer(self, one, other):
        return one == other
"""


def child(code: str, tmp_path: Path, **options: Any) -> "subprocess.Popen[str]":
    (tmp_path / "slow.py").write_text(SLOW)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    return subprocess.Popen(
        [sys.executable, "-c", PRELUDE + code, str(tmp_path)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


PRELUDE = """
import json, os, sys
from pathlib import Path
from ramify.cli.exit_codes import code_of_error
from ramify.core.errors import StoreError
from ramify.rows.jsonl import write
from ramify.runner.folder import begin, resume
from ramify.runner.saved import Saved
from ramify.config.configure import resolve

folder = Path(sys.argv[1])

def config(**flags):
    flags = {"prompts": 40, "engine.name": "scripted", "task.name": f"{folder / 'slow.py'}:Long", **flags}
    return resolve(preset="offline", flags=flags).config
"""


def exported(path: Path) -> bytes:
    write(Saved.open(path).rows(), path.with_suffix(".jsonl"))
    return path.with_suffix(".jsonl").read_bytes()


FULL = """
try:
    begin(config(), folder / "run")
except StoreError as error:
    print(str(error))
"""


@pytest.mark.slow
def test_a_run_whose_files_may_not_grow_stops_and_goes_on_to_the_same_rows(tmp_path: Path) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, resource.RLIM_INFINITY))

    with child(FULL, tmp_path, preexec_fn=limit) as process:
        said, complaints = process.communicate(timeout=60)
    assert (complaints, process.returncode) == ("", 0)
    assert "File too large" in said
    saved = load(tmp_path / "run")
    assert 20 < len(saved.records) < 1000
    resume(tmp_path / "run")
    begin(saved_config(tmp_path), tmp_path / "whole")
    assert exported(tmp_path / "run") == exported(tmp_path / "whole")


def saved_config(tmp_path: Path) -> RunConfig:
    return Saved.open(tmp_path / "run").config


INTERRUPTED = """
try:
    begin(config(**{"task.options": {"tool": "stubborn"}, "prompts": 2}), folder / "run")
except KeyboardInterrupt:
    print("interrupted", flush=True)
    sys.exit(130)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("num_times", "most_s"), [(1, 5.0), (2, 3.0)])
def test_an_interrupt_ends_a_run_in_time_whatever_its_tools_do(tmp_path: Path, num_times: int, most_s: float) -> None:
    with child(INTERRUPTED, tmp_path) as process:
        assert process.stdout is not None
        for heard in ("called\n", "cancelled\n")[:num_times]:
            while process.stdout.readline() != heard:
                assert process.poll() is None
            process.send_signal(signal.SIGINT)
        began = time.monotonic()
        _, complaints = process.communicate(timeout=60)
        seconds = time.monotonic() - began
    assert (complaints, process.returncode) == ("", 130)
    assert seconds < most_s
    records = load(tmp_path / "run").records
    assert sum(type(record).__name__ == "OpenedRecord" for record in records) == 2
