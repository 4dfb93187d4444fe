"""Plug-ins of the wrong kind are named with their file and line, before anything starts."""

from pathlib import Path

import pytest
from tests.cli.commands import ramify

pytestmark = pytest.mark.hostile

FILE = '''import sys
from dataclasses import dataclass


def function():
    return 1


class Empty:
    pass


class NeedsMore:
    def __init__(self, *, secret_word):
        pass


class Exits:
    Config = Empty

    def __init__(self, *given, **named):
        sys.exit(7)


class Raises:
    def __init__(self, *given, **named):
        raise KeyError("no")


@dataclass
class BadConfig:
    n: int = 1

    def __post_init__(self):
        raise ValueError("never right")


class BadStrategy:
    Config = BadConfig
    ask = tell = is_done = phase = None


class NoneTask:
    """Has every name of a task, and nothing behind them."""

    format = tools = judges = None

    def problems(self, split, num_problems, seed):
        return None

    def prune(self, branch):
        return None

    def is_same_answer(self, one, other):
        return False


class NoneEngine:
    codec = capabilities = None

    async def generate(self, request):
        return None

    async def close(self):
        return None


NUMBER = 7
TEXT = "text"
'''
LINES = {name: number for number, line in enumerate(FILE.splitlines(), 1) for name in [
    line.removeprefix("class ").removeprefix("def ").split("(")[0].split(" =")[0].rstrip(":")
]}  # fmt: skip
CLASSES = ("task.name", "engine.name", "strategy.name", "format", "tools.use.mine.kind")
FUNCTIONS = ("growth.prune", "rows.sample", "strategy.options.choose")
WRONG = [
    *(
        (setting, name)
        for setting in CLASSES
        for name in ("Empty", "Raises", "Exits", "NUMBER", "TEXT", "NeedsMore")
        if (setting, name) != ("tools.use.mine.kind", "NeedsMore")
    ),
    *((setting, "function") for setting in CLASSES if "tools" not in setting),
    *((setting, name) for setting in FUNCTIONS for name in ("Empty", "NUMBER", "TEXT")),
    *(("judges.mine.kind", name) for name in ("Empty", "Raises", "Exits", "NUMBER", "TEXT")),
    ("task.name", "NoneTask"),
    ("engine.name", "NoneEngine"),
]


def refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], setting: str) -> str:
    """What `rollout` says to this setting."""
    base = [] if setting.startswith("engine") else ["--engine", "scripted"]
    preset = ["--preset", "offline"] if "choose" in setting else []
    said = ramify(
        capsys, "rollout", *preset, *base, "--prompts", 1, "--out", tmp_path / "run", "--set", setting, "--set",
        "rows.leaves=1",
    )  # fmt: skip
    assert said.code == 2, said
    assert "Traceback" not in said.err and not (tmp_path / "run").exists()
    return said.err


@pytest.mark.parametrize(("setting", "name"), WRONG)
def test_a_plug_in_of_the_wrong_kind_is_named_with_its_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], setting: str, name: str
) -> None:
    """A plug-in of the wrong kind is exit 2 with its file and line, never a traceback."""
    file = tmp_path / f"wrong_{setting.replace('.', '_')}_{name}.py"
    file.write_text(FILE, "utf-8")
    said = refused(tmp_path, capsys, f"{setting}={file}:{name}")
    assert str(file) in said
    assert f"line {LINES[name]}" in said, said


BROKEN = ("1 / 0", "raise SystemExit(3)", "import sys; sys.exit('bye')", "raise BaseException", "(")


@pytest.mark.parametrize("line", BROKEN)
@pytest.mark.parametrize("setting", [*CLASSES, *FUNCTIONS, "judges.mine.kind"])
def test_a_file_that_does_not_load_is_named_with_its_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], setting: str, line: str
) -> None:
    """A plug-in's file that raises or exits when it is loaded is exit 2 with its file and line."""
    file = tmp_path / f"broken_{setting.replace('.', '_')}_{abs(hash(line))}.py"
    file.write_text(f"x = 1\n{line}\n", "utf-8")
    said = refused(tmp_path, capsys, f"{setting}={file}:x")
    assert str(file) in said and "line 2" in said


def test_a_module_that_does_not_load_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plug-in's module that raises when it is loaded is exit 2 with its file and line."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "broken_module.py").write_text("x = 1\nraise SystemExit(3)\n", "utf-8")
    said = refused(tmp_path, capsys, "task.name=broken_module:Task")
    assert "broken_module" in said and "line 2" in said


def test_a_strategy_whose_options_raise_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Options of a strategy that raise when they are made are exit 2."""
    file = tmp_path / "bad_options.py"
    file.write_text(FILE, "utf-8")
    said = refused(tmp_path, capsys, f"strategy.name={file}:BadStrategy")
    assert "bad_options" in said and "BadConfig: ValueError: never right" in said
