"""Runs that the version before the rooms began and was killed in: the present version reads, checks and resumes them.

`runs_before_rooms` holds two of them, grown on the scripted engine by
`RAMIFY_KILL_AFTER=12 ramify rollout --preset NAME --engine scripted --task countdown --prompts 2 --seed 1`. Their
configurations name switches of published code among the strategy's options, where they stood then. That version noted
the entropy of a step for some strategies only, and rounded its last digit otherwise; all else of a row is the same.
"""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ramify.cli.check import checked_run
from ramify.config.configure import resolve
from ramify.rows.jsonl import write
from ramify.runner.folder import begin, resume
from ramify.runner.saved import Saved

RUNS = Path(__file__).with_name("runs_before_rooms")


@pytest.mark.parametrize("name", ["arpo_as_published", "mctsr_as_published"])
def test_a_run_of_the_version_before_goes_on_to_the_same_rows(name: str, tmp_path: Path) -> None:
    shutil.copytree(RUNS / name, tmp_path / "run")
    assert not checked_run(tmp_path / "run").breaches
    resume(tmp_path / "run")
    flags = {"engine.name": "scripted", "task.name": "countdown", "prompts": 2, "seed": 1}
    begin(resolve(preset=name, flags=flags).config, tmp_path / "whole")
    for folder in ("run", "whole"):
        write(Saved.open(tmp_path / folder).rows(), tmp_path / f"{folder}.jsonl")
    resumed, whole = (_entropies_apart(tmp_path / f"{folder}.jsonl") for folder in ("run", "whole"))
    assert resumed.rows == whole.rows
    for noted, computed in zip(resumed.entropies, whole.entropies, strict=True):
        assert noted is None or noted == pytest.approx(computed, rel=1e-12)
    assert not checked_run(tmp_path / "run").breaches


@dataclass
class _Rows:
    rows: list[dict[str, Any]]
    """Rows without the entropies of their steps."""
    entropies: list[float | None]


def _entropies_apart(file: Path) -> _Rows:
    rows = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    return _Rows(rows, [span.pop("step_entropy") for row in rows for span in row["spans"]])


def test_switches_of_published_code_are_read_where_they_stood(tmp_path: Path) -> None:
    recorded = (RUNS / "mctsr_as_published" / "config.toml").read_text("utf-8")
    assert "published]" not in recorded and "leaf_visits" in recorded
    config = Saved.open(RUNS / "mctsr_as_published").config
    assert config.strategy.options["published"]["leaf_visits"] == "ancestor"
