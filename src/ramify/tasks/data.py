"""DataFile: the user's own questions, from a JSONL or CSV file whose columns are mapped.

Owns reading and checking: every fault names the file, the line and the column, and all of them are reported at once.
The answer column becomes the problem's secret, which oracle judges alone are handed; the question, the id and the
public columns are for everybody. Rows keep their order, and a file is never changed.
"""

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec

from ramify.core.branch import Branch
from ramify.core.errors import ConfigError, nearest
from ramify.core.format import Format
from ramify.core.judge import Judge
from ramify.core.problem import Problem
from ramify.core.tool import Tool
from ramify.formats.tags import TagFormat
from ramify.judges.exact import ANSWER, Exact, is_same_answer

MAX_FAULTS_SHOWN = 10
SUFFIXES = (".jsonl", ".ndjson", ".csv")


@dataclass(frozen=True, slots=True, kw_only=True)
class DataConfig:
    """A file of questions, and which of its columns are what."""

    path: str | None = None
    """JSONL or CSV file; None = the task makes its own problems."""
    questions: tuple[str, ...] = ()
    """Questions themselves, in place of a file; they have no gold answers."""
    question: str = "question"
    uid: str | None = None
    """Column of the problem's id; None = the number of its row, from 0."""
    answer: str | None = None
    """Column of the gold answer, which reaches oracle judges only."""
    public: tuple[str, ...] | None = None
    """Columns that go along to every row; None = all that are neither question, uid nor answer."""
    on_bad_row: Literal["stop", "skip"] = "stop"

    def __post_init__(self) -> None:
        if self.questions and self.path is not None:
            raise ConfigError(f"data.questions and data.path = {self.path!r}: questions come from one of them")

    def named(self) -> Mapping[str, str]:
        """Setting -> column, of those that must be in the file."""
        single = {"question": self.question, "uid": self.uid, "answer": self.answer}
        public = {f"public[{i}]": column for i, column in enumerate(self.public or ())}
        return {setting: column for setting, column in {**single, **public}.items() if column is not None}


@dataclass(frozen=True, slots=True)
class RowFault:
    """What is wrong with one row."""

    line: int
    message: str


Row = tuple[int, Mapping[str, Any]]
"""(line of the file, columns)."""


class DataFile:
    """Questions of the user's own as a task: no tools, and judged by exact match where there are answers.

    A file is read when problems are asked for; `skipped` then holds the bad rows that were left out.
    """

    def __init__(self, data: DataConfig) -> None:
        if data.path is None and not data.questions:
            raise ConfigError("the task 'data' needs a file: --data FILE, data.path = ... or data.questions = [...]")
        self.data = data
        self.skipped: list[RowFault] = []
        self._format = TagFormat()

    @property
    def format(self) -> Format:
        return self._format

    @property
    def tools(self) -> Sequence[Tool]:
        return ()

    @property
    def judges(self) -> Sequence[Judge]:
        return () if self.data.answer is None else (Exact(self._format),)

    def problems(self, split: str, num_problems: int, seed: int) -> Sequence[Problem]:
        """The first `num_problems`, in order; a user's questions have one split and need no seed."""
        problems, self.skipped = read_problems(self.data)
        if len(problems) < num_problems:
            source = self.data.path or "data.questions"
            raise ConfigError(f"prompts = {num_problems}, but {source} holds {len(problems)} problems; ask for no more")
        return problems[:num_problems]

    def prune(self, branch: Branch) -> str | None:
        return None

    def is_same_answer(self, one: str, other: str) -> bool:
        return is_same_answer(one, other)


def read_problems(data: DataConfig) -> tuple[list[Problem], list[RowFault]]:
    """Problems of a file in the order of its rows, and the rows that were skipped.

    Raises `ConfigError` if the file cannot be read, lacks a mapped column, holds no good row, or, unless bad rows are
    skipped, has a bad row.
    """
    if data.path is None:
        return [Problem(f"question-{number}", question) for number, question in enumerate(data.questions)], []
    path = Path(data.path)
    rows, faults = _rows(path)
    _refuse_unknown_columns(path, rows, data)
    problems: list[Problem] = []
    lines: dict[str, int] = {}
    for number, (line, row) in enumerate(rows):
        problem = _problem(row, data, number)
        if isinstance(problem, Problem) and problem.uid in lines:
            problem = f"uid {problem.uid!r} was used in line {lines[problem.uid]}; a uid names one problem"
        if isinstance(problem, str):
            faults.append(RowFault(line, problem))
        else:
            lines[problem.uid] = line
            problems.append(problem)
    faults.sort(key=lambda fault: fault.line)
    if faults and data.on_bad_row == "stop":
        raise ConfigError(_report(path, faults))
    if not problems:
        raise ConfigError(f"{path}: no row holds a problem{f'; {_report(path, faults)}' if faults else ''}")
    return problems, faults


def _rows(path: Path) -> tuple[list[Row], list[RowFault]]:
    """Every row that can be read, and a fault for each that cannot."""
    if path.suffix.lower() not in SUFFIXES:
        raise ConfigError(f"{path}: a data file ends in {', '.join(SUFFIXES)}, not {path.suffix!r}")
    try:
        text = path.read_text("utf-8-sig")
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        line = path.read_bytes()[: error.start].count(b"\n") + 1
        raise ConfigError(f"{path}:{line}: this is no UTF-8: {error.reason} at byte {error.start}") from error
    faults: list[RowFault] = []
    read = _csv_rows if path.suffix.lower() == ".csv" else _json_rows
    return list(read(text, faults)), faults


def _json_rows(text: str, faults: list[RowFault]) -> Iterator[Row]:
    # Not `splitlines`: a question may hold U+2028 and other characters that it takes for ends of lines.
    for line, content in enumerate(text.split("\n"), start=1):
        if not content.strip():
            continue
        try:
            yield line, msgspec.json.decode(content, type=dict[str, Any])
        except (msgspec.DecodeError, UnicodeEncodeError) as error:
            faults.append(RowFault(line, f"this is no JSON object: {error}"))


def _csv_rows(text: str, faults: list[RowFault]) -> Iterator[Row]:
    reader = csv.reader(text.splitlines(keepends=True), strict=True)
    header: list[str] = []
    try:
        for cells in reader:
            if not any(cell.strip() for cell in cells):
                continue
            if not header:
                header = cells
            elif len(cells) != len(header):
                faults.append(RowFault(reader.line_num, f"{len(cells)} cells under {len(header)} columns"))
            else:
                yield reader.line_num, dict(zip(header, cells, strict=True))
    except csv.Error as error:
        faults.append(RowFault(reader.line_num, f"this is no CSV: {error}"))


def _refuse_unknown_columns(path: Path, rows: Sequence[Row], data: DataConfig) -> None:
    """Raise `ConfigError` naming every mapped column that no row has."""
    present = {column for _, row in rows for column in row}
    missing = [
        f"data.{setting} = {column!r}: the file has no such column; {nearest(column, present)}"
        for setting, column in data.named().items()
        if column not in present
    ]
    if rows and missing:
        raise ConfigError(f"{path}: {'; '.join(missing)}")


def _problem(row: Mapping[str, Any], data: DataConfig, number: int) -> Problem | str:
    """The problem of a row, or what is wrong with it."""
    question = row.get(data.question)
    if not isinstance(question, str) or not question.strip():
        return f"column {data.question!r} holds no question: {question!r:.80}"
    if any("\ud800" <= c <= "\udfff" for c in question):
        return f"column {data.question!r} holds a lone surrogate, which no text encoding can hold: {question!r:.80}"
    uid = number if data.uid is None else row.get(data.uid)
    if isinstance(uid, bool) or not isinstance(uid, str | int) or uid == "":
        return f"column {data.uid!r} holds no id: {uid!r:.80}"
    secret = {} if data.answer is None else {ANSWER: row.get(data.answer)}
    if data.answer is not None and secret[ANSWER] in (None, ""):
        return f"column {data.answer!r} holds no answer: {secret[ANSWER]!r:.80}"
    return Problem(str(uid), question, public=_public(row, data), secret=secret)


def _public(row: Mapping[str, Any], data: DataConfig) -> dict[str, Any]:
    if data.public is not None:
        return {column: row.get(column) for column in data.public}
    taken = {data.question, data.uid, data.answer}
    return {column: value for column, value in row.items() if column not in taken}


def _report(path: Path, faults: Sequence[RowFault]) -> str:
    shown = [f"{path}:{fault.line}: {fault.message}" for fault in faults[:MAX_FAULTS_SHOWN]]
    more = len(faults) - len(shown)
    return "\n".join([*shown, *([f"… and {more} more bad rows"] if more else [])])
