"""Gold answers of a finished run: read again from where its problems come from."""

from pathlib import Path
from typing import Any

import pytest

from ramify import rollout_sync
from ramify.config.configure import resolve
from ramify.core.errors import ExportError
from ramify.runner.folder import begin
from ramify.runner.saved import Saved


def begun(folder: Path, **flags: Any) -> Saved:
    settings = {name.replace("__", "."): value for name, value in flags.items()}
    begin(resolve(flags={"engine.name": "scripted", "strategy.options": {"n": 1}, **settings}).config, folder / "run")
    return Saved.open(folder / "run")


def test_the_rows_of_a_run_hold_the_secret_that_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "q.jsonl"
    path.write_text('{"question": "a?", "gold": "x"}\n{"question": "b?", "gold": ["y", "z"]}\n')
    saved = begun(tmp_path, data__path=str(path))
    assert [row.public for row in saved.rows()] == [{}, {}]
    for name in ("answer", "gold"):
        assert [row.public for row in saved.rows(gold=name)] == [{name: "x"}, {name: ["y", "z"]}]
    with pytest.raises(ExportError, match="no such secret; it has 'answer', 'gold'"):
        list(saved.rows(gold="solution"))


def test_the_secrets_of_a_built_in_task_are_made_again(tmp_path: Path) -> None:
    saved = begun(tmp_path, task__name="hops", prompts=2)
    golds = [problem.secret for problem in rollout_sync(config=saved.config).problems]
    assert [{"answer": row.public["answer"]} for row in saved.rows(gold="answer")] == golds


def test_code_of_a_run_is_not_executed_for_its_secrets(tmp_path: Path) -> None:
    task = tmp_path / "mine.py"
    task.write_text("from ramify.tasks.hops import Hops as Mine\n")
    saved = begun(tmp_path, task__name=f"{task}:Mine", prompts=1)
    with pytest.raises(ExportError, match="keeps its secrets in its own code, which no export runs"):
        list(saved.rows(gold="answer"))


def test_rows_in_memory_hold_the_secret_that_is_asked_for() -> None:
    done = rollout_sync(task__name="hops", engine__name="scripted", prompts=1, strategy__options={"n": 1})
    (row,) = done.rows(gold="answer")
    assert row.public["answer"] == done.problems[0].secret["answer"]
    assert "answer" not in done.rows()[0].public
