"""slime's walkthrough on the built-in model, killed and begun again."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "slime_style.py"


@pytest.mark.slow
@pytest.mark.covers("S3.1", "S3.4", "S3.6", "S3.7", "S3.8", engine="builtin")
def test_a_killed_trainer_begins_again_where_it_saved(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", str(EXAMPLE), str(tmp_path / "service")]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    killed = lines.index("killed by signal 9 in batch 3")
    assert lines[killed + 1] == "went back to where batch 1 was saved: weights 2"
    assert lines[killed + 2] == lines[killed - 1], "the batch behind the save is the same one again"
    assert lines[killed + 3].startswith("batch 3: groups [6, 7]")
