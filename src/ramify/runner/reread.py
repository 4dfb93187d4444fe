"""Reread: the problems of a finished run with their secrets, made again from its configuration.

A run folder never holds a secret. So whoever needs gold answers reads the data file again, or asks the built-in task.
What is read is compared with the digests in the run's header, as a resume does (`inputs`). No code that a run names is
loaded.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ramify.config.run_config import RunConfig
from ramify.core.errors import ExportError
from ramify.core.problem import Problem
from ramify.judges.exact import ANSWER
from ramify.runner.build import problems_of
from ramify.runner.inputs import data_difference
from ramify.runner.permission import is_signed_here
from ramify.store.journal import accepted_in
from ramify.store.layout import JOURNAL, parts
from ramify.store.store import header_and_config
from ramify.tasks.data import DataFile


@dataclass(frozen=True, slots=True)
class RereadProblems:
    """Problems by uid, and where they come from."""

    problems: Mapping[str, Problem]
    source: str
    caveats: tuple[str, ...] = ()
    """Why rows with their secrets are not exact."""

    @classmethod
    def of(cls, run: Path, config: RunConfig, *, accept: Collection[str]) -> "RereadProblems":
        """The problems of the run in the folder `run`. With `"data"` in `accept`, data that has changed since then is
        taken.

        Raises `ConfigError` if they cannot be read, and `ExportError` if code of the user would have to run, or if the
        data has changed."""
        source = config.data.path or f"the task {config.task.name!r}"
        if config.data.path is not None:
            problems = DataFile(config.data).problems(config.task.split, config.prompts, config.seed)
        elif ":" in config.task.name:
            raise ExportError(
                f"gold: {source} keeps its secrets in its own code, which no export runs; take the rows from Python: "
                "rollout(...).rows(gold=...)"
            )
        else:
            problems = problems_of(config)
        changed = _changed(run, problems)
        if changed is not None and "data" not in accept:
            raise ExportError(
                f"gold: {source} has changed since the run began: {changed}; restore it, or take the gold answers that "
                "are there now: --accept data (in Python: rows(..., accept=['data']))"
            )
        caveat = f"its gold answers were read again from data that had changed ({changed}), as was accepted"
        return cls({problem.uid: problem for problem in problems}, source, () if changed is None else (caveat,))

    def like(self, recorded: Problem) -> Problem:
        """The problem that a tree grew from, with its secret. Raises `ExportError` if it is another one now."""
        found = self.problems.get(recorded.uid)
        if found is None or found.question != recorded.question:
            what = "is gone" if found is None else "is another one"
            raise ExportError(
                f"gold: {self.source} has changed since the run began: the question of {recorded.uid!r} {what} now. "
                "Gold answers are read from it again, because no run folder holds them; restore it"
            )
        return found


def _changed(run: Path, problems: Sequence[Problem]) -> str | None:
    """What differs from the data that the trees of a run grew with; None = nothing, or nothing can be compared."""
    header, config = header_and_config(run)
    if header.inputs is None:
        return None
    accepted = [record.inputs for part in parts(run) for record in accepted_in(part.path / JOURNAL)]
    return data_difference([header.inputs, *accepted], problems, is_own=is_signed_here(header, config))


def secret_of(problem: Problem, name: str, *, column: str | None = None) -> Any:
    """The secret `name` of a problem. `column` is the data file's column of the gold answer, another name of it.

    Raises `ExportError`."""
    key = ANSWER if name == column else name
    if key not in problem.secret:
        known = ", ".join(map(repr, dict.fromkeys([*problem.secret, *([column] if column else [])]))) or "none"
        raise ExportError(f"gold = {name!r}: problem {problem.uid!r} has no such secret; it has {known}")
    return problem.secret[key]
