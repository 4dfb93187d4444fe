"""The parts of `examples/` keep their contracts, and are found as files and as one line of the plug-in table."""

import shutil
import subprocess
import sys
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

import ramify
from ramify import plugins
from ramify.testing import (
    RandomAgent,
    Scripted,
    check_engine,
    check_format,
    check_judge,
    check_strategy,
    check_task,
    check_tool,
)

EXAMPLES = Path(__file__).parents[2] / "examples"
PARTS: dict[str, tuple[plugins.Kind, str]] = {
    "first_steps": ("strategy", "FirstSteps"),
    "counter_tool": ("tool", "Counter"),
    "length_judge": ("judge", "Length"),
    "words_task": ("task", "Words"),
    "echo_engine": ("engine", "Echo"),
}
CHECKS: dict[plugins.Kind, Any] = {
    "strategy": check_strategy,
    "tool": check_tool,
    "judge": check_judge,
    "task": check_task,
    "engine": check_engine,
}


@pytest.fixture(params=["file", "table"])
def names(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """File -> what a configuration calls the part: a file and a name, or a name that one line of the table has."""
    if request.param == "file":
        return {file: f"{EXAMPLES / file}.py:{name}" for file, (_, name) in PARTS.items()}
    folder = tmp_path / "parts_of_ours"
    folder.mkdir()
    table = {kind: dict(entries) for kind, entries in plugins.TABLE.items()}
    for file, (kind, name) in PARTS.items():
        shutil.copy(EXAMPLES / f"{file}.py", folder)
        table[kind][file] = f"parts_of_ours.{file}:{name}"
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(plugins, "TABLE", MappingProxyType(table))
    for name in [name for name in sys.modules if name.startswith("parts_of_ours")]:
        monkeypatch.delitem(sys.modules, name)
    return {file: file for file in PARTS}


@pytest.mark.parametrize("file", PARTS)
def test_a_part_keeps_its_contract(file: str, names: dict[str, str]) -> None:
    kind, name = PARTS[file]
    found = plugins.find(kind, names[file])
    assert found.__name__ == name
    CHECKS[kind](found)


def test_the_format_of_the_task_keeps_its_contract(names: dict[str, str]) -> None:
    task = plugins.find("task", names["words_task"])
    check_format(lambda: task().format)


def test_a_run_is_made_of_them(names: dict[str, str]) -> None:
    done = ramify.rollout_sync(
        prompts=2,
        seed=1,
        task__name=names["words_task"],
        engine__name=names["echo_engine"],
        strategy__name=names["first_steps"],
        strategy__options={"stems": 3},
    )
    assert [len(tree.stems()) for tree in done.trees] == [3, 3]
    assert done.report.failed_trees == 0


def test_tools_and_judges_are_named_too(names: dict[str, str]) -> None:
    done = ramify.rollout_sync(
        ["How long?"],
        engine=Scripted(RandomAgent(tags=("counter",))),
        strategy__name="best_of_n",
        strategy__options={"n": 6, "judge": "length"},
        tools__use={"counter": {"kind": names["counter_tool"]}},
        judges={"length": {"kind": names["length_judge"]}},
    )
    (tree,) = done.trees
    calls = [call for leaf in tree.leaves() for call in tree.branch(leaf).tool_calls]
    assert {call.status for call in calls if call.is_executed} == {"ok"}
    assert any("length" in {score.judge for score in tree.scores(leaf)} for leaf in tree.leaves())


@pytest.mark.parametrize("file", PARTS)
def test_an_example_checks_itself(file: str) -> None:
    command = [sys.executable, "-W", "error", str(EXAMPLES / f"{file}.py")]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
