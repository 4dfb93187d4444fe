"""The rings of the package: imports point inward, and the pure rings touch nothing outside.

Every file is parsed, none is run, so that an import inside a function counts too.
"""

import ast
import json
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import ramify

SOURCE = Path(__file__).parent.parent / "src"

PURE = ("core", "credit", "formats", "planner", "strategies")
EDGES = ("edge", "engines", "judges", "rows", "sandbox", "servers", "tasks", "tools")
SHELL = tuple("config store runner experiments sharded telemetry trackers service integrations train view cli".split())
"""Innermost first: each may import those before it."""
OUTERMOST = ("data",)
"""Scripts: they may import anything, and nothing imports them."""

MAY_IMPORT: dict[str, frozenset[str]] = {
    "core": frozenset({"core"}),
    **{ring: frozenset({"core", ring}) for ring in PURE[1:]},
    **{ring: frozenset({*PURE, *EDGES}) for ring in EDGES},
    **{ring: frozenset({*PURE, *EDGES, *SHELL}) for ring in OUTERMOST},
    **{ring: frozenset({*PURE, *EDGES, "", "plugins", *SHELL[: i + 1]}) for i, ring in enumerate(SHELL)},
    "testing": frozenset({*PURE, *EDGES, "", "plugins", *SHELL} - {"cli"}),
    "plugins": frozenset({"core"}),
    "moved": frozenset(),
    "": frozenset({*PURE, "config", "moved", "runner", "tools"}),
}
"""Ring -> rings it may import; '' is the package itself. A ring may always import itself."""

PURE_LIBRARY = frozenset(
    "abc array base64 bisect collections contextlib copy dataclasses difflib enum fractions functools hashlib heapq "
    "itertools json math numbers operator re statistics string struct textwrap types typing unicodedata".split()
)
"""What of the standard library is pure: no clock, no file, no event loop, no randomness of its own."""
IMPURE_CALLS = frozenset({"open", "print", "input", "breakpoint", "exec", "eval", "__import__"})


def ring_of(module: str) -> str:
    """The ring of `ramify.ring.module`."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else ""


def imports(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, module) of every import, wherever it stands."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            if module == "ramify":
                yield from ((node.lineno, f"ramify.{alias.name}") for alias in node.names)
            else:
                yield node.lineno, module


def import_faults(tree: ast.AST, ring: str) -> Iterator[tuple[int, str]]:
    """(line, what is wrong) for every import that `ring` may not make."""
    for line, module in imports(tree):
        top = module.split(".")[0]
        if top == "ramify" and ring_of(module) not in {*MAY_IMPORT[ring], ring}:
            yield line, f"{ring or 'ramify'} imports {module}; it may import {sorted(MAY_IMPORT[ring])}"
        if ring in PURE and top not in {"ramify", "numpy", *PURE_LIBRARY}:
            yield line, f"{ring} is pure, but imports {module}"


def purity_faults(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, what is wrong) for every call by which a pure file would touch the outside or draw by itself."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        if name in IMPURE_CALLS or name.startswith(("np.random.", "numpy.random.")):
            yield node.lineno, f"a pure file calls {name}"


def faults(path: Path) -> list[str]:
    tree = ast.parse(path.read_text("utf-8"))
    parts = path.relative_to(SOURCE / "ramify").with_suffix("").parts
    ring = parts[0] if parts[0] != "__init__" else ""
    found = [*import_faults(tree, ring), *(purity_faults(tree) if ring in PURE else ())]
    return [f"{path.relative_to(SOURCE.parent)}:{line}: {message}" for line, message in sorted(found)]


def test_every_ring_is_known():
    rings = {p.name for p in (SOURCE / "ramify").iterdir() if p.is_dir() and any(p.glob("*.py"))}
    assert rings <= set(MAY_IMPORT)


def test_imports_point_inward_and_pure_rings_are_pure():
    found = [line for path in sorted((SOURCE / "ramify").rglob("*.py")) for line in faults(path)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("ring", "code"),
    [
        ("core", "import asyncio"),
        ("core", "from ramify.strategies import chains"),
        ("core", "from ramify import plugins"),
        ("strategies", "def f():\n    import time"),
        ("strategies", "import random"),
        ("credit", "from ramify.testing.scripted import Scripted"),
        ("credit", "import logging"),
        ("formats", "from pathlib import Path"),
        ("formats", "import msgspec"),
        ("engines", "from ramify.runner.library import rollout"),
        ("rows", "import ramify.plugins"),
        ("tasks", "from ramify.cli import main"),
        ("runner", "from ramify.cli.main import main"),
        ("service", "from ramify.testing.scripted import Scripted"),
        ("testing", "from ramify.cli.main import main"),
        ("judges", "from ramify.runner.library import rollout"),
    ],
)
def test_an_import_that_points_outward_is_found(ring: str, code: str):
    assert list(import_faults(ast.parse(code), ring))


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
