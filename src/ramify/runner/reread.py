"""Reread: the problems of a finished run with their secrets, made again from its configuration.

A run folder never holds a secret. So whoever needs gold answers reads the data file again, or asks the built-in task.
No code that a run names is loaded.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ramify.config.run_config import RunConfig
from ramify.core.errors import ExportError
from ramify.core.problem import Problem
from ramify.judges.exact import ANSWER
from ramify.runner.build import problems_of
from ramify.tasks.data import DataFile


@dataclass(frozen=True, slots=True)
class RereadProblems:
    """Problems by uid, and where they come from."""

    problems: Mapping[str, Problem]
    source: str

    @classmethod
    def of(cls, config: RunConfig) -> "RereadProblems":
        """Raises `ConfigError` if they cannot be read, and `ExportError` if code of the user would have to run."""
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
        return cls({problem.uid: problem for problem in problems}, source)

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


def secret_of(problem: Problem, name: str, *, column: str | None = None) -> Any:
    """The secret `name` of a problem. `column` is the data file's column of the gold answer, another name of it.

    Raises `ExportError`."""
    key = ANSWER if name == column else name
    if key not in problem.secret:
        known = ", ".join(map(repr, dict.fromkeys([*problem.secret, *([column] if column else [])]))) or "none"
        raise ExportError(f"gold = {name!r}: problem {problem.uid!r} has no such secret; it has {known}")
    return problem.secret[key]
