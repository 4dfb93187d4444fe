"""The table of SECURITY.md names the tests that there are."""

import ast
import re
from pathlib import Path

from tests.promises import PAGE, SUITES

ROOT = PAGE.parent


def functions(suite: str) -> set[str]:
    """`file::function` of every test of a file or a folder."""
    path = ROOT / suite
    files = sorted(path.glob("test_*.py")) if path.is_dir() else [path]
    return {f"{file.relative_to(ROOT)}::{name}" for file in files for name in names_in(file)}


def names_in(file: Path) -> list[str]:
    nodes = ast.parse(file.read_text("utf-8")).body
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return [node.name for node in nodes if isinstance(node, kinds) and node.name.startswith("test_")]


def test_every_hostile_test_stands_in_the_table_and_no_other() -> None:
    named = set(re.findall(r"`(tests/[^`]+::test_\w+)`", PAGE.read_text("utf-8")))
    there = {name for suite in SUITES for name in functions(suite)}
    assert named == there, "python -m tests.promises writes the table"
