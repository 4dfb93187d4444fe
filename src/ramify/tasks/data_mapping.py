"""Mapping: which columns of a file are the question, the gold answer and copies of it, where the user named none.

It reads the file and returns a `DataConfig` that names all of them, so that a run records what was used. It refuses a
file without a question's column, and one whose gold columns disagree. Nothing that a user named is changed.
"""

import importlib.util
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Literal, cast

from ramify.core.errors import ConfigError, nearest
from ramify.judges.exact import gold_answers, is_same_answer
from ramify.tasks.data import DataConfig
from ramify.tasks.data_columns import MISSING, Columns, found, names_in
from ramify.tasks.data_folder import data_files
from ramify.tasks.data_gold import (
    GOLD,
    QUESTIONS,
    disagree,
    final_answer,
    gold_columns,
    is_held,
    looks_mathematical,
    question_columns,
    rank,
)
from ramify.tasks.data_row import RowFault, RowPlace, WantedColumns
from ramify.tasks.data_rows import rows

ROLES: Final = frozenset({"assistant", "gpt", "model", "bot"})
"""Roles in lists of messages that answer."""


def mapped(data: DataConfig, named: Collection[str]) -> DataConfig:
    """`data` with the columns that its file has for what is not `named`. `named` are names of its fields.

    A file without a readable row is left to `read_problems`. Raises `ConfigError`.
    """
    assert data.path is not None
    columns, questions, golds = _seen(data)
    if not columns:
        return data
    if "question" not in named:
        data = replace(data, question=_question(data, columns, questions))
    if data.answer is None and "answer" not in named and golds:
        data = replace(data, answer=min(golds, key=lambda column: rank(column, GOLD)))
        _refuse_ambiguous(data, golds)
    copies, is_math = _of_gold(data)
    if "secret" not in named:
        data = replace(data, secret=tuple(sorted(copies)))
    if data.answer is not None and data.judge is None:
        data = replace(data, judge=_judge(is_math=is_math))
    return data


def _judge(*, is_math: bool) -> Literal["exact", "math"]:
    return "math" if is_math and importlib.util.find_spec("math_verify") is not None else "exact"


def _rows(data: DataConfig) -> Iterator[tuple[RowPlace, Columns]]:
    """The readable rows of all files; `read_problems` tells of the others."""
    wanted = WantedColumns({}, has_others=True)
    for file in data_files(Path(data.path or ""), data.split).files:
        for row in rows(file, wanted):
            if not isinstance(row, RowFault):
                yield row


def _seen(data: DataConfig) -> tuple[set[str], set[str], set[str]]:
    """All columns, those called like a question and those called like a gold answer."""
    columns: set[str] = set()
    questions: set[str] = set()
    golds: set[str] = set()
    for _, row in _rows(data):
        columns.update(names_in(row))
        questions.update(question_columns(row))
        golds.update(gold_columns(row, data.public or ()))
    return columns, questions, golds - {data.uid}


def _question(data: DataConfig, columns: set[str], questions: set[str]) -> str:
    if questions:
        return min(questions, key=lambda column: rank(column, QUESTIONS))
    raise ConfigError(
        f"{data.path}: data.question = {data.question!r}: the file has no such column; "
        f"{nearest(data.question, columns)}; the file has {', '.join(sorted(columns))}. A column is found by the names "
        f"{', '.join(QUESTIONS)}; name another one: --set data.question=COLUMN"
    )


def _refuse_ambiguous(data: DataConfig, golds: set[str]) -> None:
    """Refuse two gold columns with different answers in one row."""
    assert data.answer is not None
    for place, row in _rows(data):
        gold = found(row, data.answer)
        for column in sorted(golds - {data.answer}):
            other = found(row, column)
            if (
                gold is not MISSING
                and other is not MISSING
                and is_held(gold)
                and is_held(other)
                and disagree(gold, other)
            ):
                raise ConfigError(
                    f"{place}: the columns {data.answer!r} and {column!r} both look like the gold answer, and they "
                    f"disagree; name the one that counts: --set data.answer={data.answer} or --set data.answer={column}"
                )


def _of_gold(data: DataConfig) -> tuple[set[str], bool]:
    """Columns that hold the answer under another name, and whether the gold answers look mathematical.

    A column is a copy where it equals the gold answer in every row that has both, or holds messages of an assistant.
    """
    copies: dict[str, bool] = {}
    is_math = False
    kept = {data.question, data.uid, data.answer, *(data.public or ())}
    for _, row in _rows(data):
        gold = None if data.answer is None else found(row, data.answer)
        has_gold = gold is not MISSING and is_held(gold)
        is_math = is_math or (has_gold and looks_mathematical(gold))
        for column, value in _leaves(row):
            if column in kept or not is_held(value):
                continue
            if _has_answers(value):
                copies[column] = True
            elif has_gold and copies.get(column, True):
                copies[column] = _is_copy(value, gold)
    return {column for column, is_copy in copies.items() if is_copy}, is_math


def _leaves(row: Columns, at: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in row.items():
        path = f"{at}.{name}" if at else name
        if isinstance(value, Mapping):
            yield from _leaves(cast(Columns, value), path)
        else:
            yield path, value


def _has_answers(value: Any) -> bool:
    """Whether a value is a list of messages, one of them from the model."""
    messages = cast(list[Any], value) if isinstance(value, list) else []
    return any(isinstance(m, Mapping) and (m.get("role") or m.get("from")) in ROLES for m in messages)


def _is_copy(value: Any, gold: Any) -> bool:
    if isinstance(value, list) and not all(isinstance(one, str | int | float) for one in cast(list[Any], value)):
        return False
    known = gold_answers(gold) + gold_answers(final_answer(gold))
    return all(any(is_same_answer(one, other) for other in known) for one in gold_answers(value))
