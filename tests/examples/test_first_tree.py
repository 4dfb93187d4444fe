"""The notebook is a valid one without stored output, and its cells run in order in a new interpreter."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

NOTEBOOK = Path(__file__).parents[2] / "examples" / "first_tree.ipynb"
RUNNER = Path(__file__).with_name("notebook_cells.py")
KEYS = {
    "markdown": {"cell_type", "id", "metadata", "source"},
    "code": {"cell_type", "id", "metadata", "source", "execution_count", "outputs"},
}
"""Of a cell, by nbformat 4.5."""


@pytest.fixture
def notebook() -> dict[str, Any]:
    return json.loads(NOTEBOOK.read_text("utf-8"))


def test_the_notebook_has_the_keys_of_its_format(notebook: dict[str, Any]) -> None:
    assert set(notebook) == {"cells", "metadata", "nbformat", "nbformat_minor"}
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert notebook["metadata"]["kernelspec"]["name"] == "python3"
    for cell in notebook["cells"]:
        assert set(cell) == KEYS[cell["cell_type"]]
        assert all(isinstance(line, str) for line in cell["source"])
    names = [cell["id"] for cell in notebook["cells"]]
    assert len(set(names)) == len(names) and all(re.fullmatch(r"[\w-]{1,64}", name, re.ASCII) for name in names)


def test_the_notebook_stores_no_output(notebook: dict[str, Any]) -> None:
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert code and all(cell["execution_count"] is None and cell["outputs"] == [] for cell in code)


@pytest.mark.slow
def test_the_cells_of_the_notebook_run_in_order(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", str(RUNNER), str(NOTEBOOK)]
    done = subprocess.run(command, check=False, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("make 16 from 3 4 2 14\n5 leaves with the rewards [0.0, 0.0, 1.0, 1.0, 0.0]\n<svg ")
    assert "<answer>16</answer>   weight 1  advantage +1.10\n" in done.stdout
    assert "leaf_grpo False\n" in done.stdout
    assert "74 tokens are trained over all rows; the model sampled 74\n" in done.stdout
    assert "answer: 24\n" in done.stdout
    assert not list(tmp_path.iterdir())
