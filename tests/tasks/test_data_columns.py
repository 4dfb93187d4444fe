"""Which columns become what: dotted paths, messages, and values that JSON cannot hold."""

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ramify.core.errors import ConfigError
from ramify.core.problem import Problem
from ramify.tasks.data import DataConfig, read_problems
from ramify.tasks.data_columns import BadRow, plain

VERL = {
    "data_source": "openai/gsm8k",
    "prompt": [{"role": "user", "content": "one and one?"}],
    "reward_model": {"style": "rule", "ground_truth": "2"},
    "extra_info": {"index": 7, "split": "train"},
}
"""A row as verl's examples write it (verl-project/verl:examples/data_preprocess/gsm8k.py)."""


def jsonl(folder: Path, *rows: dict[str, Any]) -> str:
    path = folder / "data.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def only(path: str, **columns: Any) -> Problem:
    (problem,), faults = read_problems(DataConfig(path=path, **columns))
    assert not faults
    return problem


def said(messages: Any) -> dict[str, Any]:
    return {"prompt": messages}


@pytest.mark.covers("S3.8")
def test_the_layout_of_verl_is_read_by_dotted_paths_and_the_answer_is_nowhere_public(tmp_path: Path):
    path = jsonl(tmp_path, VERL)
    mapped = {"question": "prompt", "uid": "extra_info.index", "answer": "reward_model.ground_truth"}
    assert only(path, **mapped) == Problem(
        "7",
        "one and one?",
        public={
            "data_source": "openai/gsm8k",
            "reward_model": {"style": "rule"},
            "extra_info": {"split": "train"},
        },
        secret={"answer": "2"},
    )
    named = only(path, **mapped, public=("reward_model", "extra_info.split"))
    assert named.public == {"reward_model": {"style": "rule"}, "extra_info.split": "train"}


def test_a_column_called_like_a_path_comes_before_the_path(tmp_path: Path):
    row = {"question": "a?", "gold.text": "exact", "gold": {"text": "nested", "by": "me"}}
    problem = only(jsonl(tmp_path, row), answer="gold.text")
    assert problem.secret == {"answer": "exact"}
    assert problem.public == {"gold": {"by": "me"}}


def test_paths_go_as_deep_as_columns_do(tmp_path: Path):
    row = {"question": "a?", "meta": {"gold": {"text": "deep", "by": "me"}}}
    problem = only(jsonl(tmp_path, row), answer="meta.gold.text", public=("meta.gold",))
    assert (problem.secret, problem.public) == ({"answer": "deep"}, {"meta.gold": {"by": "me"}})


@pytest.mark.parametrize(
    ("row", "answer", "message"),
    [
        ({"gold": {"text": "x"}}, "gold.txt", "no such column; did you mean 'gold.text'"),
        ({"gold": "x"}, "gold.text", "data.answer = 'gold.text': the file has no such column"),
        ({"gold": None}, "gold.text", "data.jsonl:1: column 'gold.text' holds no answer: None"),
        ({"gold": {"text": None}}, "gold.text", "data.jsonl:1: column 'gold.text' holds no answer: None"),
    ],
)
def test_a_path_to_nothing_is_named(tmp_path: Path, row: dict[str, Any], answer: str, message: str):
    with pytest.raises(ConfigError) as caught:
        read_problems(DataConfig(path=jsonl(tmp_path, {"question": "a?", **row}), answer=answer))
    assert message in str(caught.value)


@pytest.mark.parametrize("column", ["gold", "gold.text"])
def test_the_answer_cannot_be_named_public(column: str):
    with pytest.raises(ConfigError, match=r"data\.answer = 'gold' is secret"):
        DataConfig(path="data.jsonl", answer="gold", public=(column,))
    assert DataConfig(path="data.jsonl", answer="gold", public=("golden",)).public == ("golden",)


@pytest.mark.covers("S3.8")
def test_a_message_of_the_user_is_the_question_and_the_one_of_the_system_is_public(tmp_path: Path):
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "a?", "tool_calls": None}]
    problem = only(jsonl(tmp_path, said(messages)), question="prompt")
    assert (problem.question, problem.public) == ("a?", {"system_message": "Be brief."})
    named = only(jsonl(tmp_path, {**said(messages), "level": 1}), question="prompt", public=("level",))
    assert named.public == {"level": 1, "system_message": "Be brief."}


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([], "holds messages of none; a question is one message of the user"),
        ([{"role": "system", "content": "s"}], "holds messages of system;"),
        ([{"role": "user", "content": "a"}] * 2, "holds messages of user, user;"),
        ([{"role": "user", "content": "a"}, {"role": "system", "content": "s"}], "holds messages of user, system;"),
        ([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], "messages of user, assistant;"),
        ([{"role": "user", "content": "  "}], "holds no question: '  '"),
        (
            [{"role": "user", "content": [{"type": "text", "text": "a?"}]}],
            "which is no message; a message has the texts 'role' and 'content'",
        ),
        ([{"role": "user", "content": None}], "which is no message; a message has the texts 'role' and 'content'"),
        (
            [{"role": "user", "content": "a?", "name": "Ann"}],
            "which is no message; a message has the texts 'role' and 'content'",
        ),
        (["a?"], "holds 'a?', which is no message; a message has"),
        ({"role": "user", "content": "a?"}, "holds no question: {'role'"),
    ],
)
def test_any_other_list_of_messages_is_a_bad_row(tmp_path: Path, messages: Any, message: str):
    path = jsonl(tmp_path, said(messages), said("b?"))
    with pytest.raises(ConfigError) as caught:
        read_problems(DataConfig(path=path, question="prompt"))
    (line,) = str(caught.value).splitlines()
    assert "data.jsonl:1: column 'prompt' holds " in line and message in line
    problems, skipped = read_problems(DataConfig(path=path, question="prompt", on_bad_row="skip"))
    assert ([p.question for p in problems], [f.place.number for f in skipped]) == (["b?"], [1])


def test_a_system_message_does_not_write_over_a_column(tmp_path: Path):
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "a?"}]
    with pytest.raises(ConfigError, match="there is a column 'system_message' too"):
        read_problems(DataConfig(path=jsonl(tmp_path, {**said(messages), "system_message": ""}), question="prompt"))


def test_values_become_plain_or_are_refused_by_the_column_they_are_in():
    given = {"a": np.float32(0.5), "b": [np.int64(3), float("inf")], "c": (True, None, "x", float("nan"))}
    assert plain(given, "meta") == {"a": 0.5, "b": [3, None], "c": [True, None, "x", None]}
    for value, kind in ((b"\x89PNG", "bytes"), (datetime(2025, 1, 2), "datetime"), ({1}, "set")):
        with pytest.raises(BadRow, match=rf"column 'meta.when' holds a value of type {kind}, which JSON cannot hold"):
            plain({"when": value}, "meta")
