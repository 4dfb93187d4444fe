"""The map of the package: every room, what it may import and why. A file in no room, an import that the map does not
name, an import circle and a public class name that stands twice all fail here.

Files are parsed and never run, so an import inside a function counts too. Imports under `TYPE_CHECKING` do not: they
never run.
"""

import ast
import json
import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

import ramify

SOURCE = Path(__file__).parent.parent / "src"
PACKAGE = SOURCE / "ramify"


class Room(NamedTuple):
    """A folder of the package, or a file beside the folders."""

    may_import: str
    """Rooms, besides itself."""
    why: str


PURE = "core credit formats planner strategies"
"""Standard library and numpy alone: no clock, no file, no event loop, no randomness but a generator handed in."""
EDGES = "edge engines environments judges rows sandbox servers tasks tools workspaces"
"""Each wraps things from outside."""
CONFIGURED = f"{PURE} {EDGES} config plugins version"
GROWING = f"{CONFIGURED} store runner"

ROOMS: Mapping[str, Room] = {
    "core": Room("", "the nouns: tree, segment, command, limits, and what every part must be"),
    "credit": Room("core", "advantage estimators: a tree becomes a coefficient for every sampled token"),
    "formats": Room("core", "how a kind of agent speaks"),
    "planner": Room("core", "whether trees pay: statistics of a pilot, and the shape they advise"),
    "strategies": Room("core", "the list of methods, one entry a method"),
    "strategies.parts": Room("core", "arithmetic that several methods share"),
    "strategies.ab_mcts": Room("core", "a family of methods"),
    "strategies.mcts": Room("core", "a family of methods"),
    "strategies.mctsr": Room("core", "a family of methods"),
    "strategies.tot": Room("core", "a family of methods"),
    "edge": Room("core", "what every edge shares: HTTP, retries, concurrency, threads"),
    "engines": Room("core formats edge", "what samples tokens; chat engines read replies by a format's words"),
    "engines.served": Room("core formats edge", "a model behind a server of token ids"),
    "engines.fleet": Room("core edge", "several servers of one model as one engine"),
    "sandbox": Room("core edge", "code of a model, run behind walls"),
    "servers": Room("core edge engines", "processes that serve models; they know the client they are made for"),
    "servers.pool": Room("core edge engines", "engines on the cards of one or several machines"),
    "workspaces": Room("core edge sandbox version", "folders of files for code agents, a state a branch, and commands"),
    "tools": Room("core formats edge sandbox workspaces", "what a model calls"),
    "environments": Room("core formats edge judges tasks tools workspaces", "worlds that answer the turns of an agent"),
    "judges": Room("core formats edge engines tools", "what scores a branch; some ask a model, some run a function"),
    "tasks": Room("core formats judges tools", "where problems come from, with their format, tools and judges"),
    "rows": Room("core credit strategies", "a tree as training rows; which leaves are kept is a strategy's part"),
    "version": Room("", "the one place that says which version this is"),
    "moved": Room("", "old names of modules, which work for one version"),
    "plugins": Room("core", "names of plug-ins, as strings: nothing is imported before it is asked for"),
    "config": Room(f"{PURE} {EDGES} plugins", "a run as values, checked against the parts that it names"),
    "store": Room("core rows version", "a run on disk, and what must hold of it"),
    "runner": Room(f"{CONFIGURED} store", "prepares and grows runs"),
    "experiments": Room(GROWING, "compares runs"),
    "experiments.certify": Room(GROWING, "whether trees estimate a gradient exactly, on problems that are enumerated"),
    "experiments.capacity": Room(f"{GROWING} testing", "a run on modelled servers, in virtual time"),
    "sharded": Room(GROWING, "one run on many processes"),
    "telemetry": Room(GROWING, "metrics and spans of any run"),
    "trackers": Room("core config", "where figures are kept"),
    "service": Room(f"{GROWING} experiments telemetry trackers", "batches for a trainer"),
    "integrations": Room(f"{GROWING} service", "trainers, a room each"),
    "integrations.slime": Room(f"{GROWING} service", "what slime loads by dotted path"),
    "integrations.verl": Room(f"{GROWING} service", "what verl finds under our name, and its rollouts as trees"),
    "integrations.openrlhf": Room(f"{GROWING} service", "rows as batches of OpenRLHF"),
    "integrations.trl": Room(f"{GROWING} service", "a trainer of TRL whose batches are trees"),
    "train": Room(
        f"{GROWING} experiments integrations service", "gradients of rows, to measure their noise, and a training loop"
    ),
    "gateway": Room(GROWING, "searches as models over HTTP, one tree a request"),
    "view": Room(f"{GROWING} experiments", "runs and trees as pictures, tables and documents of a page"),
    "view.readers": Room("core formats", "files of other projects as trees; nothing in them is run"),
    "testing": Room(
        f"{GROWING} experiments view", "doubles for users; of the package, only `experiments.capacity` imports them"
    ),
    "testing.contracts": Room(f"{GROWING} view", "what each kind of plug-in must keep to, as functions"),
    "cli": Room(
        f"{GROWING} experiments gateway service sharded telemetry trackers train view", "the command line, a thin shell"
    ),
    "": Room(f"{PURE} config moved runner tools version view", "the public names, imported when they are first used"),
}


def is_pure(room: str) -> bool:
    return room.partition(".")[0] in PURE.split()


PURE_LIBRARY = frozenset(
    "abc array base64 bisect collections contextlib copy dataclasses difflib enum fractions functools hashlib heapq "
    "itertools json math numbers operator re statistics string struct textwrap types typing unicodedata "
    "warnings".split()
)
"""What of the standard library is pure: no clock, no file, no event loop, no randomness of its own."""
IMPURE_CALLS = frozenset({"open", "print", "input", "breakpoint", "exec", "eval", "__import__"})
DEFINES_FUNCTIONS = frozenset({"core.quick_init"})
"""Pure files that call `exec` once a class, as `dataclasses` does, on nothing but the names of its fields."""


def module_of(path: Path) -> str:
    """`core.tree` of `src/ramify/core/tree.py`; '' of the package itself."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES: Mapping[str, Path] = {module_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}


@cache
def trees() -> Mapping[str, ast.Module]:
    """Of every module; parsed when a test first asks, not when tests are collected."""
    return {module: ast.parse(path.read_text("utf-8")) for module, path in MODULES.items()}


def room_of(module: str) -> str:
    """The innermost room of a module."""
    while module not in ROOMS:
        module = module.rpartition(".")[0]
    return module


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """Every node below, but for what stands under `if TYPE_CHECKING`."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and isinstance(child.test, ast.Name) and child.test.id == "TYPE_CHECKING":
            continue
        yield child
        yield from statements(child)


def imports(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, module) of every import that may run, wherever it stands."""
    for node in statements(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            if module.partition(".")[0] != "ramify":
                yield node.lineno, module
                continue
            for alias in node.names:
                whole = f"{module}.{alias.name}"
                yield node.lineno, whole if whole.removeprefix("ramify.") in MODULES else module


def import_faults(tree: ast.AST, room: str) -> Iterator[tuple[int, str]]:
    """(line, what is wrong) for every import that `room` may not make."""
    top = room.partition(".")[0]
    for line, module in imports(tree):
        package = module.partition(".")[0]
        if package == "ramify":
            there = module.removeprefix("ramify").removeprefix(".").partition(".")[0]
            if there != top and there not in ROOMS[room].may_import.split():
                yield line, f"{room or 'ramify'} imports {module}; it may import {ROOMS[room].may_import or 'nothing'}"
        elif is_pure(room) and package not in {"numpy", *PURE_LIBRARY}:
            yield line, f"{room} is pure, but imports {module}"


def purity_faults(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, what is wrong) for every call by which a pure file would touch the outside or draw by itself."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            if name in IMPURE_CALLS or name.startswith(("np.random.", "numpy.random.")):
                yield node.lineno, f"a pure file calls {name}"


def circles(imported: Mapping[str, set[str]]) -> list[list[str]]:
    """Sets of modules that import one another, by Tarjan's algorithm."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(module: str) -> None:
        index[module] = low[module] = len(index)
        stack.append(module)
        for other in imported.get(module, ()):
            if other not in index:
                visit(other)
            if other in stack:
                low[module] = min(low[module], low[other])
        if low[module] == index[module]:
            circle = stack[stack.index(module) :]
            del stack[stack.index(module) :]
            if len(circle) > 1:
                found.append(sorted(circle))

    for module in imported:
        if module not in index:
            visit(module)
    return found


def test_every_file_is_in_a_room_and_every_room_is_there():
    folders = {module_of(path.parent / "__init__.py") for path in MODULES.values()}
    beside = {module for module in MODULES if module and "." not in module}
    assert folders | beside == set(ROOMS)


@pytest.mark.slow
def test_every_room_says_what_it_is():
    silent = [room for room in ROOMS if room not in MODULES or not ast.get_docstring(trees()[room])]
    assert not silent, f"these rooms have no __init__.py with a docstring: {silent}"


def test_imports_are_those_of_the_map_and_pure_rooms_are_pure():
    found = [
        f"{MODULES[module].relative_to(SOURCE.parent)}:{line}: {message}"
        for module, tree in trees().items()
        for line, message in (
            *import_faults(tree, room_of(module)),
            *(purity_faults(tree) if is_pure(room_of(module)) and module not in DEFINES_FUNCTIONS else ()),
        )
    ]
    assert not found, "\n".join(found)


def test_no_modules_import_one_another():
    imported = {
        module: {other for _, whole in imports(tree) if (other := whole.removeprefix("ramify.")) in MODULES}
        for module, tree in trees().items()
    }
    assert not circles(imported)


def test_a_circle_is_found():
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}) == [["b", "c"]]


def test_a_public_class_name_stands_once():
    places: dict[str, list[str]] = defaultdict(list)
    for module, tree in trees().items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(module)
    twice = {name: modules for name, modules in places.items() if len(modules) > 1}
    assert not twice, f"prefix these with their owner, or make them private: {twice}"


@pytest.mark.parametrize(
    ("room", "code"),
    [
        ("core", "import asyncio"),
        ("core", "from ramify.strategies import chains"),
        ("core", "from ramify import plugins"),
        ("strategies", "def f():\n    import time"),
        ("strategies.parts", "from ramify import plugins"),
        ("strategies", "import random"),
        ("credit", "from ramify.engines.builtin import Builtin"),
        ("credit", "import logging"),
        ("formats", "from pathlib import Path"),
        ("formats", "import msgspec"),
        ("engines", "from ramify.runner.library import rollout"),
        ("engines", "from ramify.testing.scripted import Scripted"),
        ("rows", "import ramify.plugins"),
        ("tasks", "from ramify.cli import main"),
        ("runner", "from ramify.cli.main import main"),
        ("service", "from ramify.testing.scripted import Scripted"),
        ("testing", "from ramify.cli.main import main"),
        ("judges", "from ramify.runner.library import rollout"),
        ("service", "from ramify.integrations.slime.args import SlimeArgs"),
    ],
)
def test_an_import_that_the_map_does_not_name_is_found(room: str, code: str):
    assert list(import_faults(ast.parse(code), room))


@pytest.mark.parametrize("code", ["open('x')", "np.random.default_rng()", "print(1)", "numpy.random.seed(0)"])
def test_a_call_out_of_a_pure_ring_is_found(code: str):
    assert list(purity_faults(ast.parse(code)))


IMPORT_RAMIFY = """
import json, sys, time
began = time.perf_counter()
import ramify
print(json.dumps([time.perf_counter() - began, sorted(sys.modules)]))
"""


def test_import_ramify_is_quick_and_loads_nothing_heavy():
    measured = [
        json.loads(subprocess.run([sys.executable, "-c", IMPORT_RAMIFY], capture_output=True, check=True).stdout)
        for _ in range(5)
    ]
    heavy = {"asyncio", "matplotlib", "numpy", "pyarrow", "rich", "torch", "transformers"}
    assert not heavy & set(measured[0][1])
    assert statistics.median(seconds for seconds, _ in measured) < 0.3


def test_everything_public_can_be_had_from_the_package():
    missing = [name for name in ramify.__all__ if not hasattr(ramify, name)]
    assert not missing
    assert set(ramify.__all__) == set(dir(ramify))
