"""When a policy has moved from its plan, and what its log keeps after a kill."""

import json
from pathlib import Path
from typing import Any

import pytest

from ramify.train.log import TrainingLog
from ramify.train.planned import has_moved


def log_of(folder: Path, *lines: dict[str, Any]) -> TrainingLog:
    log = TrainingLog(folder / "log.jsonl")
    for line in lines:
        log.append({"tokens": 0, **line})
    return log


def plan(step: int) -> dict[str, Any]:
    return {"step": step, "plan": {"children": [4.0], "keep": None}}


def evaluation(step: int, mean: float, error: float = 0.03) -> dict[str, Any]:
    return {"step": step, "eval_step": 0.0, "eval_heldout": mean, "eval_heldout-stderr": error}


@pytest.mark.parametrize(
    ("lines", "moved"),
    [
        ([], False),
        ([evaluation(0, 0.3), evaluation(5, 0.9)], False),  # nothing was planned
        ([plan(0), evaluation(0, 0.3)], False),
        ([plan(0), evaluation(0, 0.3), evaluation(5, 0.36)], False),
        ([plan(0), evaluation(0, 0.3), evaluation(5, 0.4)], True),
        ([plan(0), evaluation(0, 0.4), evaluation(5, 0.3)], True),  # it may have got worse
        ([plan(0), evaluation(0, 0.3), evaluation(5, 0.36), evaluation(10, 0.4)], True),
        ([plan(0), evaluation(0, 0.3), evaluation(5, 0.4), {"step": 6, "reward": 0.5}], False),  # not evaluated since
        ([plan(0), evaluation(0, 0.3), evaluation(5, 0.4), plan(5)], False),
        ([plan(0), evaluation(0, 0.3), evaluation(5, 0.4), plan(5), evaluation(10, 0.42)], False),
        ([plan(0), evaluation(0, 0.3), evaluation(5, 0.4), plan(5), evaluation(10, 0.5)], True),
    ],
)
def test_a_policy_has_moved(lines: list[dict[str, Any]], moved: bool, tmp_path: Path) -> None:
    assert has_moved(log_of(tmp_path, *lines)) is moved


def test_a_log_goes_back_to_a_checkpoint(tmp_path: Path) -> None:
    log_of(tmp_path, plan(0), evaluation(0, 0.3), {"step": 1, "tokens": 7}, {"step": 2, "tokens": 9})
    file = tmp_path / "log.jsonl"
    with file.open("a") as cut:
        cut.write('{"step": 3, "tok')  # by a kill
    log = TrainingLog(file)
    assert log.tokens == 9
    log.go_back(1)
    assert [line["step"] for line in map(json.loads, file.read_text().splitlines())] == [0, 0, 1]
    log.append({"step": 2, "tokens": 8})
    assert TrainingLog(file).tokens == 8
    log.go_back(None)
    assert TrainingLog(file).lines == [{"tokens": 0, **plan(0)}]
