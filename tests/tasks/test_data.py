from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ramify.core.errors import ConfigError
from ramify.core.problem import Problem
from ramify.tasks.data import DataConfig, DataFile, read_problems


def written(folder: Path, content: str | bytes, name: str = "data.jsonl") -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def at(path: Path, **columns: Any) -> DataConfig:
    return DataConfig(path=str(path), **columns)


def test_columns_become_question_id_secret_and_public(tmp_path: Path):
    path = written(tmp_path, '{"q": "one?", "id": 7, "gold": "1", "level": 2}\n{"q": "two?", "id": "b", "gold": 2}\n')
    problems, skipped = read_problems(at(path, question="q", uid="id", answer="gold"))
    assert problems == [
        Problem("7", "one?", public={"level": 2}, secret={"answer": "1"}),
        Problem("b", "two?", secret={"answer": 2}),
    ]
    assert not skipped


def test_only_the_named_columns_are_public(tmp_path: Path):
    path = written(tmp_path, '{"question": "one?", "a": 1, "b": 2}')
    (problem,), _ = read_problems(at(path, public=("b",)))
    assert problem.public == {"b": 2}


def test_a_csv_file_is_read_with_quoted_lines(tmp_path: Path):
    path = written(tmp_path, '\ufeffquestion,answer\r\n"two\nlines?",4\r\n\r\nplain?,"a ""b"""\r\n', "data.csv")
    problems, _ = read_problems(at(path, answer="answer"))
    assert [(p.uid, p.question, p.secret["answer"]) for p in problems] == [
        ("0", "two\nlines?", "4"),
        ("1", "plain?", 'a "b"'),
    ]


def test_a_byte_order_mark_blank_lines_and_line_separators_are_no_fault(tmp_path: Path):
    path = written(tmp_path, '\ufeff{"question": "a\u2028b?"}\r\n\n   \n{"question": "c?"}')
    problems, _ = read_problems(at(path))
    assert [p.question for p in problems] == ["a\u2028b?", "c?"]


@pytest.mark.parametrize(
    ("content", "columns", "message"),
    [
        ('{"question": "a?"}\n{"text": "b?"}', DataConfig(), "data.jsonl:2: column 'question' holds no question: None"),
        ('{"question": "  "}', DataConfig(), "data.jsonl:1: column 'question' holds no question"),
        ('{"question": 3}', DataConfig(), "holds no question: 3"),
        ('{"question": "a?"}', DataConfig(uid="nr"), "data.uid = 'nr': the file has no such column; known: question"),
        (
            '{"qestion": "a?"}',
            DataConfig(),
            "data.question = 'question': the file has no such column; did you mean 'qe",
        ),
        ('{"question": "a?"}', DataConfig(public=("level",)), "data.public[0] = 'level': the file has no such column"),
        (
            '{"question": "a?", "id": 1}\n{"question": "b?", "id": "1"}',
            DataConfig(uid="id"),
            "data.jsonl:2: line 1 has the uid '1' too; give each problem a uid of its own",
        ),
        ('{"question": "a?", "id": 1.5}', DataConfig(uid="id"), "column 'id' holds no id: 1.5"),
        ('{"question": "a?", "id": true}', DataConfig(uid="id"), "column 'id' holds no id: True"),
        ('{"question": "a?", "gold": ""}', DataConfig(answer="gold"), "column 'gold' holds no answer: ''"),
        ('{"question": "a?"}\n{"question": ', DataConfig(), "data.jsonl:2: the line is not a JSON object"),
        ('["question"]', DataConfig(), "data.jsonl:1: the line is not a JSON object"),
        ('{"question": "\\ud800"}', DataConfig(), "data.jsonl:1: "),
        (b'{"question": "a?"}\n{"question": "\xff"}', DataConfig(), "data.jsonl:2: the line is not UTF-8"),
        ("", DataConfig(), "data.jsonl: no row holds a problem"),
    ],
)
def test_a_bad_file_is_refused_with_the_line_and_the_column(
    tmp_path: Path, content: str | bytes, columns: DataConfig, message: str
):
    with pytest.raises(ConfigError) as caught:
        read_problems(replace(columns, path=str(written(tmp_path, content))))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("question,a\nx?", "data.csv:2: the row has 1 cells and the header 2 columns"),
        ('question\n"open', "data.csv:2: the rest of the file is not CSV"),
    ],
)
def test_a_bad_csv_file_is_refused_with_its_line(tmp_path: Path, content: str, message: str):
    with pytest.raises(ConfigError) as caught:
        read_problems(at(written(tmp_path, content, "data.csv")))
    assert message in str(caught.value)


def test_a_missing_file_and_an_unknown_kind_of_file_are_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"none\.jsonl cannot be read: No such file"):
        read_problems(at(tmp_path / "none.jsonl"))
    with pytest.raises(ConfigError, match=r"a data file ends in \.jsonl"):
        read_problems(at(written(tmp_path, "", "data.xlsx")))


def test_every_bad_row_is_named_at_once_and_many_are_counted(tmp_path: Path):
    path = written(tmp_path, '{"question": ""}\n' * 12)
    with pytest.raises(ConfigError) as caught:
        read_problems(at(path))
    lines = str(caught.value).splitlines()
    assert len(lines) == 11
    assert lines[-1] == "… and 2 more bad rows"


def test_bad_rows_can_be_skipped_and_are_reported(tmp_path: Path):
    path = written(tmp_path, '{"question": "a?"}\nnope\n{"question": "b?"}\n{"question": null}')
    problems, skipped = read_problems(at(path, on_bad_row="skip"))
    assert [p.question for p in problems] == ["a?", "b?"]
    assert [fault.place.number for fault in skipped] == [2, 4]


def test_a_file_of_bad_rows_only_is_refused_even_if_they_are_skipped(tmp_path: Path):
    with pytest.raises(ConfigError, match="no row holds a problem"):
        read_problems(at(written(tmp_path, "nope"), on_bad_row="skip"))


def test_the_task_takes_problems_in_order_and_says_when_there_are_too_few(tmp_path: Path):
    path = written(tmp_path, '{"question": "a?"}\n{"question": "b?"}')
    task = DataFile(at(path))
    assert [p.question for p in task.problems("heldout", 1, seed=3)] == ["a?"]
    with pytest.raises(ConfigError, match=r"prompts = 3, but .* holds 2 problems"):
        task.problems("heldout", 3, seed=3)


def test_the_task_judges_only_where_there_are_answers():
    assert [judge.is_oracle for judge in DataFile(DataConfig(path="data.jsonl", answer="gold")).judges] == [True]
    assert not DataFile(DataConfig(path="data.jsonl")).judges
    with pytest.raises(ConfigError, match="needs questions"):
        DataFile(DataConfig())
