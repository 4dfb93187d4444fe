"""What documents and examples import is public: a table of the page extend lists the module, and it has the name."""

import ast
import importlib
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.docs.test_examples import PAGES, REPOSITORY, blocks, name_of, table

EXAMPLES = sorted((REPOSITORY / "examples").glob("*.py"))
NOTEBOOK = REPOSITORY / "examples" / "first_tree.ipynb"
PUBLIC = {name for names in table("guides/extend.md", "## What you may import") for name in re.split(r", ", names)}


def imports(source: str) -> Iterator[tuple[int, str, str]]:
    """(line, module, name) of every import from ramify; the name is empty where the module itself is imported."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "ramify":
            yield from ((node.lineno, node.module or "", alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((node.lineno, a.name, "") for a in node.names if a.name.split(".")[0] == "ramify")


def fault(module: str, name: str) -> str | None:
    """What is wrong with one import; None = nothing."""
    if module not in PUBLIC and f"{module}.{name}" not in PUBLIC:
        return f"{module} is not in the table of what may be imported"
    if not name or f"{module}.{name}" in PUBLIC:
        return None
    found = importlib.import_module(module)
    public = getattr(found, "__all__", None)
    return None if hasattr(found, name) and (public is None or name in public) else f"{module} has no public {name!r}"


def faults(source: str, where: str) -> list[str]:
    found = ((line, fault(module, name)) for line, module, name in imports(source))
    return [f"{where}:{line}: {what}" for line, what in found if what]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_page_imports_what_is_public(page: Path) -> None:
    sources = [block.text for block in blocks(page) if block.language == "python"]
    assert not [line for source in sources for line in faults(source, page.name)]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_an_example_imports_what_is_public(example: Path) -> None:
    assert not faults(example.read_text("utf-8"), example.name)


def test_the_notebook_imports_what_is_public() -> None:
    cells = json.loads(NOTEBOOK.read_text("utf-8"))["cells"]
    sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert any(map(list, map(imports, sources)))
    assert not [line for source in sources for line in faults(source, NOTEBOOK.name)]


def test_everything_in_the_table_can_be_imported() -> None:
    for name in PUBLIC:
        importlib.import_module(name)


@pytest.mark.parametrize(
    "code", ["from ramify.core.tree import ROOT", "import ramify.runner.run", "from ramify import Nope"]
)
def test_what_is_not_public_is_found(code: str) -> None:
    assert faults(code, "code")
