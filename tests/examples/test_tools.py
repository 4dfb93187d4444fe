"""The examples of tools run as they are."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def said(example: str) -> str:
    command = [sys.executable, "-W", "error", str(EXAMPLES / example)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_function_is_a_tool():
    wrong, right = said("function_tool.py").splitlines()
    assert wrong.startswith("invalid: ")
    assert wrong.endswith('unit = "yard": it must be one of "km", "mile"')
    assert right == 'ok: {"amount": 42} -> {"mile": 26.1}'


@pytest.mark.slow
def test_every_branch_has_an_mcp_server_of_its_own():
    lines = said("mcp_tool.py").splitlines()
    assert len(lines) == 2
    for line in lines:
        assert re.fullmatch(r"write: 1 notes, then read: \d+", line)
