"""What every tool promises, by its branching; a registered tool is found by its name."""

import asyncio
import sys
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from ramify import plugins
from ramify.core.tool import Tool
from ramify.testing.clock import run_virtual
from ramify.testing.contracts.rules import keep
from ramify.testing.contracts.tools import TOOL_RULES, ToolCase
from ramify.testing.notebook import Notebook
from ramify.tools.calculator import Calculator
from ramify.tools.function import FunctionTool, tool
from ramify.tools.mcp import Mcp
from ramify.tools.passages import Passage
from ramify.tools.search import Search
from ramify.tools.search_index import build_index
from ramify.tools.sqlite_index import memory_index


def reverse(arguments: str) -> str:
    return arguments[::-1]


@tool
def weather(city: str, days: int = 1) -> dict[str, object]:
    return {"city": city, "days": days}


NOTES = str(Path(__file__).parents[1] / "hostile" / "notes_server.py")


@cache
def with_folder(*ways: str) -> dict[str, Any]:
    """Options of a server whose branches have working folders."""
    options: dict[str, Any] = {"command": sys.executable, "args": [NOTES, "{branch}/notes.txt", *ways]}
    options |= {"workdir": "branch", "only": ["write"]}
    return {**options, **Mcp(**options).recorded()}


@cache
def in_a_workspace() -> dict[str, Any]:
    """Options of a server in a workspace, where it is seen as the text of its program alone."""
    options: dict[str, Any] = {"command": "/usr/bin/python3", "workdir": "workspace", "only": ["write"]}
    options["args"] = ["-c", Path(NOTES).read_text("utf-8"), "/w/notes.txt"]
    return {**options, **Mcp(**options).recorded()}


def on_a_workspace(**options: Any) -> Tool:
    (only,) = Mcp(**in_a_workspace(), **options).tools
    return only


def on_a_folder(*ways: str, **options: Any) -> Tool:
    (only,) = Mcp(**with_folder(*ways), **options).tools
    return only


@cache
def listing() -> dict[str, Any]:
    """Options of a server that was asked once for its tools."""
    server = str(Path(__file__).parents[1] / "tools" / "mcp_server.py")
    options: dict[str, Any] = {"command": sys.executable, "args": [server]}
    return {**options, **Mcp(**options).recorded()}


def of_server(name: str) -> Tool:
    (only,) = Mcp(**listing(), only=[name]).tools
    return only


PASSAGES = (Passage("one two", "A"), Passage("two three", "B"), Passage("three four", "C"))
INDEX = memory_index(PASSAGES)


def search_on_disk() -> Search:
    """A search whose calls run in threads. The file is open, so its folder may go."""
    with TemporaryDirectory() as folder:
        build_index(Path(folder) / "index", PASSAGES)
        return Search(Path(folder) / "index")


virtual = partial(ToolCase, run=run_virtual)
"""A case without real processes, which need real time."""
CASES = {
    "calculator": virtual(Calculator, ("7+1", "13*5", "nonsense", "65+8"), "13-5"),
    "notebook": virtual(Notebook, ("write red", "write blue", "nonsense", "read"), "write green"),
    "function": virtual(lambda: FunctionTool(reverse), ("one", "two", "", "three"), "four"),
    "search": virtual(lambda: Search(lambda problem: INDEX), ("one", "two three", "", "nonsense"), "four"),
    "typed function": virtual(lambda: weather, ("Rome", '{"city": "Oslo", "days": 2}', "", "Bern"), "Kyiv"),
    "server that is read": ToolCase(
        lambda: of_server("add"),
        ('{"a": 1, "b": 2}', '{"a": 3, "b": 4}', '{"b": 5, "a": 6}'),
        '{"a": 7, "b": 8}',
        run=asyncio.run,
    ),
    "server that remembers": ToolCase(
        lambda: of_server("remember"), ("red", "blue", "", "green"), "yellow", run=asyncio.run
    ),
    "server with a working folder": ToolCase(on_a_folder, ("one", "two"), "four"),
    "server with a working folder that is copied": ToolCase(
        partial(on_a_folder, branching={"write": "fork"}), ("one", "two"), "four"
    ),
    "server with a working folder that is refilled": ToolCase(
        partial(on_a_folder, branching={"write": "replay"}), ("one", "two"), "four"
    ),
    "server in a workspace": ToolCase(on_a_workspace, ("one", "two"), "four"),
    "server in a workspace that is copied": ToolCase(
        partial(on_a_workspace, branching={"write": "fork"}), ("one", "two"), "four"
    ),
    "shell": ToolCase(
        partial(plugins.build, "tool", "shell"), ("echo one > a; cat a", "cd /tmp; echo two >> /w/a", "cat /w/a"), "ls"
    ),
    "search on disk": virtual(search_on_disk, ("one", "two three", "", "nonsense"), "four"),
}
ELSEWHERE = {
    "mcp": "the cases of a server above",
    "python": "tests/tools/test_python_runs.py: it needs the walls of a sandbox",
    "retriever": "tests/tools/test_retriever.py: it needs a server",
}
"""Registered tools that have no case of their own here -> where they are held to the contract."""
CASES |= {
    name: ToolCase(partial(plugins.build, "tool", name))
    for name in plugins.known("tool")
    if name not in CASES and name not in ELSEWHERE
}


@pytest.fixture(
    params=[pytest.param(case, marks=pytest.mark.slow if "workspace" in name else ()) for name, case in CASES.items()],
    ids=CASES.keys(),
)
def case(request: pytest.FixtureRequest) -> ToolCase:
    return request.param


@pytest.mark.parametrize("rule", TOOL_RULES)
def test_every_tool_keeps_the_contract(case: ToolCase, rule: str) -> None:
    keep(TOOL_RULES, rule, case, "the tool")
