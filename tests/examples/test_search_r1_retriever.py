"""The example of Search-R1's retriever runs as it is."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "search_r1_retriever.py"


@pytest.mark.slow
def test_chains_search_a_corpus_through_its_server() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLE)], check=False, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    *drawn, summary = done.stdout.splitlines()
    assert summary == "10 chains, 13 searches, mean reward 0.9"
    assert sum("<search>owl bird goddess</search> → <information>Doc 1(Title:" in line for line in drawn) == 4
