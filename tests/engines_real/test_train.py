"""`ramify train` with rollouts of a real vLLM server, which loads the policy after each update."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from bench.real_replicas import served

pytestmark = pytest.mark.engines
PYTHON = "RAMIFY_TRAINERS_PYTHON"
"""Environment variable with the interpreter that has TRL; `make test-engines` sets it."""
GAP = "sampling/sampling_logp_difference/mean"


def test_a_policy_is_trained_on_trees_of_a_server(tmp_path: Path) -> None:
    python = os.environ.get(PYTHON) or pytest.skip(f"{PYTHON} is not set: make test-engines")
    with served(count=1, is_tied=False) as server:
        trained = (
            *(python, "-m", "ramify.cli.main", "train", "--task", "countdown", "--trees", "6", "--steps", "4"),
            *("--engine", "vllm", "--base-url", server.base_url, "--policy", str(server.model)),
            *("--set", f"engine.model={server.model}", "--set", "service.eval.heldout.prompts=8", "--plan", "4"),
            *("--learning-rate", "1e-3", "--eval-every", "2", "--save-every", "2", "--out", str(tmp_path / "out")),
        )
        subprocess.run(trained, check=True)
    lines: list[dict[str, Any]] = list(map(json.loads, (tmp_path / "out/log.jsonl").read_text("utf-8").splitlines()))
    assert "plan" in lines[0]
    gaps = [line[GAP] for line in lines if "reward" in line]
    assert len(gaps) == 4
    assert max(gaps) < 1e-4  # an update moves them by 3e-3: the server has each one
