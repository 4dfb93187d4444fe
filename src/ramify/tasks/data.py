"""DataFile: the user's own questions, from a file or a folder whose columns are mapped.

It owns mapping and checking. Every fault names the file, the line or row and the column, and all faults are reported at
once. `data_folder` finds the files, `data_rows` and `data_arrow` read them, `data_mapping` finds columns that the user
did not name, `data_gold` says which are secret by their name. The answer column becomes the problem's secret, which
only oracle judges get. Everybody may read the question, the id and the public columns. Rows keep their order. Besides
the problems, memory holds one batch of rows. Files are never changed.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from ramify.core.branch import Branch
from ramify.core.errors import ConfigError
from ramify.core.format import Format
from ramify.core.judge import BranchJudge
from ramify.core.problem import Problem
from ramify.core.tool import Tool
from ramify.formats.tags import TagFormat
from ramify.judges.exact import ANSWER, Exact, is_same_answer
from ramify.judges.math import MathJudge
from ramify.tasks.data_columns import (
    MISSING,
    BadRow,
    Columns,
    conversation_in,
    found,
    names_in,
    plain,
    question_in,
    value_of,
    without,
)
from ramify.tasks.data_folder import data_files
from ramify.tasks.data_gold import final_answer, is_gold, open_part
from ramify.tasks.data_row import Row, RowFault, RowPlace, WantedColumns
from ramify.tasks.data_rows import rows

MAX_FAULTS_SHOWN = 10
Asked = Callable[[Any, str], tuple[str, Columns]]
"""(value of the question column, its name) -> the question, and the public columns that come with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataConfig:
    """Where the questions are, and what their columns mean. A column is named exactly or by a dotted path."""

    path: str | None = None
    """JSONL, CSV, Parquet or Arrow file, or a folder of them; None = the task makes its own problems."""
    split: str | None = None
    """Split to read from a folder; None = the only one."""
    questions: tuple[str, ...] = ()
    """The questions themselves, instead of a file; they have no gold answers."""
    question: str = "question"
    """Column of the question: a text, or a list of messages: one from the user and at most one from the system."""
    uid: str | None = None
    """Column of the problem's id; None = the number of its row, from 0."""
    answer: str | None = None
    """Column of the gold answer, which only oracle judges get."""
    judge: Literal["exact", "math"] | None = None
    """Compares answers with the gold answer; None = `exact`."""
    public: tuple[str, ...] | None = None
    """Columns that are copied to every row; None = all except question, uid and answer. A column that is called like a
    gold answer (`data_gold`) is copied only if it is named here."""
    secret: tuple[str, ...] = ()
    """Further columns that no row gets."""
    on_bad_row: Literal["stop", "skip"] = "stop"
    """A row that cannot be read stops the run before it starts, or is skipped and counted."""

    def __post_init__(self) -> None:
        if self.questions and self.path is not None:
            raise ConfigError(f"data.questions and data.path = {self.path!r} are both set; set one of them")
        if self.split is not None and self.path is None:
            raise ConfigError(
                f"data.split = {self.split!r} needs data.path, which is not set; set data.path or leave data.split out"
            )
        for column in self.public or ():
            if self.answer is not None and f"{column}.".startswith(f"{self.answer}."):
                raise ConfigError(
                    f"data.public lists {column!r}, but data.answer = {self.answer!r} is secret; list another"
                )
            if column in self.secret:
                raise ConfigError(f"data.public and data.secret both name {column!r}; drop one")

    def named(self) -> Mapping[str, str]:
        """Setting -> column, for columns that must be in the file."""
        single = {"question": self.question, "uid": self.uid, "answer": self.answer}
        public = {f"public[{i}]": column for i, column in enumerate(self.public or ())}
        return {setting: column for setting, column in {**single, **public}.items() if column is not None}

    def taken(self) -> list[str]:
        """Columns that are public only if `public` names them."""
        return [column for column in (self.question, self.uid, self.answer) if column is not None]

    def told(self, num_problems: int, judges: Iterable[str]) -> str:
        """What is read from the file, and who judges, in one line for people."""
        gold = "none" if self.answer is None else f"{self.answer!r} (secret)"
        more = f"; kept secret too: {', '.join(map(repr, self.secret))}" if self.secret else ""
        return (
            f"data: {num_problems} problems of {self.path}; question: {self.question!r}; gold answer: {gold}; "
            f"judge: {', '.join(judges) or 'none'}{more}"
        )


class DataFile:
    """The user's own questions as a task. It has no tools; answers, if given, are judged by exact match.

    A file is read when problems are asked for. `skipped` then holds the bad rows that were left out.
    """

    def __init__(self, data: DataConfig) -> None:
        if data.path is None and not data.questions:
            raise ConfigError("the task 'data' needs questions: --data FILE, data.path = ... or data.questions = [...]")
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
    def judges(self) -> Sequence[BranchJudge]:
        if self.data.answer is None:
            return ()
        return (MathJudge(self._format) if self.data.judge == "math" else Exact(self._format),)

    def problems(self, split: str, num_problems: int, seed: int) -> Sequence[Problem]:
        """The first `num_problems`, in order. A user's questions have one split and need no seed."""
        problems, self.skipped = read_problems(self.data)
        if len(problems) < num_problems:
            source = self.data.path or "data.questions"
            raise ConfigError(
                f"prompts = {num_problems}, but {source} holds {len(problems)} problems; set prompts to at "
                f"most {len(problems)}"
            )
        return problems[:num_problems]

    def prune(self, branch: Branch) -> str | None:
        return None

    def is_same_answer(self, one: str, other: str) -> bool:
        return is_same_answer(one, other)


def read_problems(data: DataConfig) -> tuple[list[Problem], list[RowFault]]:
    """Problems of a file or folder in the order of its rows, and the rows that were skipped.

    Raises `ConfigError` if a file cannot be read, a mapped column is missing everywhere, or no row is good. Also raises
    it for a bad row, unless bad rows are skipped.
    """
    if data.path is None:
        return [Problem(f"question-{number}", question) for number, question in enumerate(data.questions)], []
    return _read(data, question_in)


def read_conversations(data: DataConfig) -> tuple[list[Problem], list[RowFault]]:
    """The same of rows whose question column holds written conversations: all messages are the public column
    `conversation`, and the first message of the user is the question."""
    if data.path is None:
        raise ConfigError("written conversations are read from a file: set data.path")
    return _read(data, conversation_in)


def _read(data: DataConfig, asked: Asked) -> tuple[list[Problem], list[RowFault]]:
    path = Path(data.path or "")
    where = data_files(path, data.split)
    wanted = WantedColumns(data.named(), has_others=data.public is None)
    reading = _Reading(data, wanted, where.split, asked)
    problems = list(reading.problems(row for file in where.files for row in rows(file, wanted)))
    if reading.unseen and reading.present:
        raise ConfigError(f"{path}: {wanted.missing(reading.unseen, reading.present)}")
    if reading.faults and data.on_bad_row == "stop":
        raise ConfigError(_report(reading.faults))
    if not problems:
        raise ConfigError(f"{path}: no row holds a problem; {_report(reading.faults) or 'there are no rows'}")
    return problems, reading.faults


class _Reading:
    """Turns rows into problems and collects their faults."""

    def __init__(self, data: DataConfig, wanted: WantedColumns, split: str, asked: Asked) -> None:
        self._data = data
        self._split = split
        self._asked = asked
        self._places: dict[str, RowPlace] = {}
        self.unseen = dict(wanted.named)
        """Setting -> column, for columns that no row has had so far."""
        self.present: set[str] = set()
        """Columns of the rows, collected until every mapped column was seen."""
        self.faults: list[RowFault] = []

    def problems(self, read: Iterator[Row]) -> Iterator[Problem]:
        """The problem of every good row."""
        number = 0
        for row in read:
            if isinstance(row, RowFault):
                self.faults.append(row)
                continue
            place, columns = row
            try:
                yield self._problem(columns, place, number)
            except BadRow as bad:
                self.faults.append(RowFault(place, str(bad)))
            number += 1

    def _problem(self, row: Columns, place: RowPlace, number: int) -> Problem:
        if self.unseen:
            self.present.update(names_in(row))
            self.unseen = {setting: name for setting, name in self.unseen.items() if found(row, name) is MISSING}
        data = self._data
        question, beside = self._asked(value_of(row, data.question), data.question)
        uid = str(number) if data.uid is None else _uid(value_of(row, data.uid), data.uid)
        secret = {} if data.answer is None else {ANSWER: _answer(value_of(row, data.answer), data.answer)}
        public = _public(row, data, beside)
        # Row numbers are always different.
        if data.uid is not None and (first := self._places.setdefault(uid, place)) is not place:
            raise BadRow(f"{first.beside(place)} has the uid {uid!r:.80} too; give each problem a uid of its own")
        return Problem(uid, question, public=public, secret=secret, split=self._split)


def _uid(value: Any, column: str) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
        raise BadRow(f"column {column!r} holds no id: {value!r:.80}; an id is a text or a whole number")
    return str(value)


def _answer(value: Any, column: str) -> Any:
    answer = plain(value, column)
    if answer in (None, ""):
        raise BadRow(f"column {column!r} holds no answer: {value!r:.80}")
    return final_answer(answer)


def _public(row: Columns, data: DataConfig, beside: Columns) -> dict[str, Any]:
    """The public columns, and those that come with the question. If a dotted path inside a column is the answer, the
    rest of the column stays."""
    if data.public is None:
        public = open_part(without(row, [*data.taken(), *data.secret]), named=(), answer=data.answer)
    else:
        hidden = [*data.secret, *([] if data.answer is None else [data.answer])]
        public = {column: _named_part(without(row, hidden), column, data) for column in data.public}
    public = {column: plain(value, column) for column, value in public.items()}
    if taken := [name for name in beside if name in public]:
        what = f"a {taken[0].replace('_', ' ')}"
        raise BadRow(
            f"column {data.question!r} holds {what}, and there is a column {taken[0]!r} too; "
            "rename that column or leave it out of data.public"
        )
    return {**public, **beside}


def _named_part(row: Columns, column: str, data: DataConfig) -> Any:
    """A column that is named public, without the gold columns inside it that are not named themselves."""
    value = value_of(row, column)
    if not isinstance(value, Mapping) or is_gold(column):
        return value
    return open_part(cast(Columns, value), named=data.public or (), answer=data.answer, at=column)


def _report(faults: Sequence[RowFault]) -> str:
    shown = [str(fault) for fault in faults[:MAX_FAULTS_SHOWN]]
    more = len(faults) - len(shown)
    return "\n".join([*shown, *([f"… and {more} more bad rows"] if more else [])])
