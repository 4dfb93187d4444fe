"""`ramify init`: the written project runs as it is, in an empty folder, by the commands that a user types."""

import asyncio
import importlib.util
import json
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tests.cli.commands import ramify
from tests.engines.endpoint import Endpoint, said
from tests.store.test_store import unprivileged

from ramify.cli.init import FILES, SOURCES, text_of, write_project
from ramify.core.problem import Problem
from ramify.testing import check_tool

TIMEOUT_S = 60.0
PROBLEM = Problem("p", "make 24 from 4 6 1", public={"numbers": [4, 6, 1]}, secret={"answer": "24"})


def run(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """A command in a process of its own."""
    command = [sys.executable, "-W", "error", "-m", "ramify.cli.main", *arguments]
    return subprocess.run(command, cwd=folder, check=False, capture_output=True, text=True, timeout=TIMEOUT_S)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    write_project(tmp_path / "mine")
    return tmp_path / "mine"


def task_of(project: Path) -> ModuleType:
    """The module of the project's Python file."""
    spec = importlib.util.spec_from_file_location("task_of_project", project / "task.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_the_commands_that_it_prints_run_in_the_new_project(tmp_path: Path):
    done = run(tmp_path, "init", "my agent")
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(path.name for path in (tmp_path / "my agent").iterdir()) == sorted(FILES)
    printed = [line.strip() for line in done.stdout.split("next:\n")[1].splitlines()]
    assert len(printed) == 2
    script = " && ".join(printed).replace("ramify", f"{shlex.quote(sys.executable)} -m ramify.cli.main")
    shell = subprocess.run(["sh", "-ec", script], cwd=tmp_path, check=False, capture_output=True, text=True, timeout=60)
    assert shell.returncode == 0, shell.stderr
    assert "make 24 from 4 6 1" in shell.stdout
    assert (tmp_path / "my agent" / "runs" / "first" / "journal").is_dir()


@pytest.mark.slow
def test_rollout_check_and_search_run_in_the_new_project(project: Path):
    grown = run(project, "rollout", "--json", "-q")
    assert (grown.returncode, grown.stderr) == (0, "")
    report = json.loads(grown.stdout)
    assert report["run"] == "runs/offline-1"
    assert report["trees"] == 4 and report["failed_trees"] == 0 and report["tool_calls"] > 0
    assert 0 < report["mean_reward"] < 1, "some answers are right and some are wrong"
    checked = run(project, "check", "runs/offline-1", "--trust", "--json")
    assert checked.returncode == 0
    assert json.loads(checked.stdout)["breaches"] == [] and json.loads(checked.stdout)["rows"] > 0
    found = run(project, "search", "--preset", "self_consistency", "--json", "-q")
    assert found.returncode == 0
    assert "59" in [answer["answer"] for answer in json.loads(found.stdout)["answers"]]


def test_a_fork_copies_the_numbers_of_the_calculator(project: Path):
    check_tool(task_of(project).Calculator, calls=["4*6", "24*1", "oops"], other="4+6", problem=PROBLEM)


@pytest.mark.parametrize(
    ("step", "text", "status"),
    [
        ("4*6", "24 : 1 24", "ok"),
        (" 6 / 4 ", "3/2 : 1 3/2", "ok"),
        ("1/6", "1/6 : 4 1/6", "ok"),
        ("4*4", "error: '4*4' is no step with two of [4, 6, 1]", "error"),
        ("4/0", "error: '4/0' is no step with two of [4, 6, 1]", "error"),
        ("4", "error: '4' is no step with two of [4, 6, 1]", "error"),
        ("9" * 5000, f"error: '{'9' * 39} is no step with two of [4, 6, 1]", "error"),
    ],
)
def test_the_calculator_answers_every_step(project: Path, step: str, text: str, status: str):
    async def called() -> Any:
        session = await task_of(project).Calculator().open(PROBLEM)
        return await session.call(step)

    result = asyncio.run(called())
    assert (result.text, result.status) == (text, status)


def test_every_line_of_the_settings_says_what_it_does(project: Path):
    lines = [line for line in (project / "ramify.toml").read_text().splitlines() if line]
    assert all(re.search(r"#.*[a-z]{2,}", line) for line in lines)
    assert all("#" in line[1:] for line in lines if re.match(r"#? ?[a-z_]+ = ", line))


def with_endpoint(text: str, url: str) -> str:
    """The settings as their comments say they are changed for an endpoint."""
    before, builtin, rest = text.partition('name = "builtin"')
    for key in ("name", "model", "base_url"):
        rest = rest.replace(f"# {key} = ", f"{key} = ")
    return f"{before}# {builtin}{rest}".replace("https://api.openai.com/v1", url)


def test_the_lines_for_an_endpoint_work_when_they_are_not_comments(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def model(body: Any) -> Any:
        asked = [message["role"] for message in body["messages"]].count("user")
        return said(["<calc>4*6", "<calc>24*1", "<answer>24"][asked - 1])

    with Endpoint(model, models=[{"id": "gpt-4o-mini"}]) as endpoint:
        settings = project / "ramify.toml"
        settings.write_text(with_endpoint(settings.read_text(), endpoint.url))
        assert set(tomllib.loads(settings.read_text())["engine"]) == {"name", "model", "base_url"}
        monkeypatch.chdir(project)
        grown = ramify(capsys, "rollout", "--prompts", "1", "--json", "-q")
    assert (grown.code, grown.err) == (0, "")
    assert grown.json["mean_reward"] == 1.0
    system, question = endpoint.requests[0]["messages"]
    assert "<calc>step</calc>: One step, such as 4*6" in system["content"]
    assert question == {"role": "user", "content": "make 24 from 4 6 1"}


def test_in_the_current_folder_it_needs_no_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    told = ramify(capsys, "init", "--json")
    assert told.code == 0
    assert told.json == {
        "schema": "ramify.init/1",
        "folder": ".",
        "files": list(FILES),
        "next": ["ramify rollout --out runs/first", "ramify show runs/first 0"],
    }
    assert {name: (tmp_path / name).read_text() for name in FILES} == {name: text_of(name) for name in FILES}


def test_the_package_holds_these_files_and_no_other():
    assert {path.name.removesuffix(".txt") for path in SOURCES.iterdir()} == set(FILES)


def a_file(path: Path) -> None:
    path.write_text("mine")


def a_link_to_nothing(path: Path) -> None:
    path.symlink_to("nowhere")


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("make", [a_file, a_link_to_nothing, Path.mkdir])
def test_what_is_there_is_never_overwritten(
    tmp_path: Path, name: str, make: Callable[[Path], None], capsys: pytest.CaptureFixture[str]
):
    make(tmp_path / name)
    refused = ramify(capsys, "init", tmp_path)
    assert (refused.code, refused.out) == (2, "")
    assert refused.err == (
        f"error: {tmp_path / name} exists, and init overwrites nothing; name another folder, or rename it\n"
    )
    assert [path.name for path in tmp_path.iterdir()] == [name], "nothing else is written"
    assert make is not a_file or (tmp_path / name).read_text() == "mine"


def test_other_files_of_the_folder_stay(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    a_file(tmp_path / "notes.txt")
    assert ramify(capsys, "init", tmp_path).code == 0
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_file_is_no_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    a_file(tmp_path / "file")
    refused = ramify(capsys, "init", tmp_path / "file")
    assert (refused.code, refused.err) == (2, f"error: {tmp_path / 'file'} is a file; name a folder\n")
    below = ramify(capsys, "init", tmp_path / "file" / "below")
    assert below.code == 2
    assert "Not a directory; name a folder that you may write to" in below.err


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o555)
    with unprivileged(locked / "mine"):
        refused = ramify(capsys, "init", locked / "mine")
        inside = ramify(capsys, "init", locked)
    assert (refused.code, inside.code) == (2, 2)
    assert (
        refused.err
        == f"error: cannot write {locked / 'mine'}: Permission denied; name a folder that you may write to\n"
    )
    assert f"cannot write {locked / 'ramify.toml'}: Permission denied" in inside.err
    assert not list(locked.iterdir())
