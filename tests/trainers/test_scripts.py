"""Scripts that train by another trainer's own parts, on this machine's CPU."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from ramify.engines.shipped import MODELS

pytestmark = pytest.mark.trainers
EXAMPLES = Path(__file__).parents[2] / "examples"


def test_verl_trains_the_policy_that_sampled() -> None:
    pytest.importorskip("verl", reason="verl is not installed: make test-trainers")
    command = [sys.executable, str(EXAMPLES / "train_verl.py"), str(MODELS["herds"]), "3", "4"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    gaps = [float(found) for found in re.findall(r"at most (\S+) from the engine's", done.stdout)]
    assert len(gaps) == 3 and max(gaps) < 1e-3  # the engine has the weights of every update
