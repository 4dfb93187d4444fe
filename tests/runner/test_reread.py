"""Gold answers of a finished run: read again from where its problems come from."""

from pathlib import Path
from typing import Any

import pytest

from ramify import rollout_sync
from ramify.config.configure import resolve
from ramify.core.errors import ExportError
from ramify.runner.folder import begin, resume
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


def written(path: Path, *golds: str) -> None:
    path.write_text(
        "".join(f'{{"question": "what is {i} and 1?", "gold": "{gold}"}}\n' for i, gold in enumerate(golds))
    )


def test_gold_answers_that_were_edited_since_are_refused_or_marked(tmp_path: Path) -> None:
    path = tmp_path / "q.jsonl"
    written(path, "1", "2")
    saved = begun(tmp_path, data__path=str(path))
    written(path, "1", "3")
    with pytest.raises(ExportError, match=r"q\.jsonl has changed since the run began: the gold answers; .*accept"):
        list(saved.rows(gold="gold"))
    assert len(list(saved.rows())) == 2
    rows = list(saved.rows(gold="gold", accept=["data"]))
    assert [row.public["gold"] for row in rows] == ["1", "3"]
    assert all("gold answers were read again from data that had changed" in " ".join(row.reasons) for row in rows)
    assert not any(row.is_unbiased for row in rows)


def test_gold_answers_of_a_run_that_went_on_with_others_are_no_longer_of_all_its_trees(tmp_path: Path) -> None:
    path = tmp_path / "q.jsonl"
    written(path, "1", "2")
    saved = begun(tmp_path, data__path=str(path))
    written(path, "1", "3")
    resume(saved.path, accept=["data"])
    for golds in (("1", "2"), ("1", "3")):
        written(path, *golds)
        with pytest.raises(ExportError, match="the gold answers"):
            list(saved.rows(gold="gold"))
        assert len(list(saved.rows(gold="gold", accept=["data"]))) == 2


def test_a_run_of_somebody_else_has_gold_answers_that_cannot_be_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "q.jsonl"
    written(path, "1", "2")
    saved = begun(tmp_path, data__path=str(path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "other"))
    assert len(list(saved.rows(gold="gold"))) == 2
    written(path, "1")
    path.write_text(path.read_text() + '{"question": "another?", "gold": "2"}\n')
    with pytest.raises(ExportError, match="the questions, their ids"):
        list(saved.rows(gold="gold"))


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
