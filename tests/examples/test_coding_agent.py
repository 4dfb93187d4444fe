"""The example of a coding agent runs as it is: the interpreter of each branch knows what that branch did."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "coding_agent.py"
LEAF = re.compile(r"leaf +(\d+): reward ([01]\.0), tried in its interpreter: (.+)")


@pytest.mark.slow
@pytest.mark.skipif(os.uname().sysname != "Linux", reason="sandboxes need Linux")
def test_every_branch_tells_its_own_history() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLE)], check=False, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    leaves = [found.groups() for line in done.stdout.splitlines() if (found := LEAF.fullmatch(line))]
    assert len(leaves) == 8
    histories = [tried.split(", ") for _, _, tried in leaves]
    assert all(tried[0] == "draft" and len(set(tried)) == len(tried) for tried in histories)
    assert len({tuple(tried) for tried in histories}) >= 4
    assert [reward == "1.0" for _, reward, _ in leaves] == [bool({"middle", "library"} & set(t)) for t in histories]
