"""Judging: run judges at the edge, so that a judge's fault is data and ground truth goes to oracles only."""

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ramify.core.branch import Branch
from ramify.core.command import Score
from ramify.core.errors import JudgeError, RamifyError
from ramify.core.judge import Judge, Verdict
from ramify.core.problem import Problem


@dataclass(frozen=True, slots=True)
class Judging:
    """The judges of a run. `leaf` names those that score every leaf when it ends, the last one's value its reward."""

    judges: Mapping[str, Judge]
    leaf: tuple[str, ...]
    deadline_s: float = 60.0

    async def leaf_scores(self, branch: Branch, problem: Problem) -> tuple[tuple[Score, ...], str | None]:
        """Scores of a leaf by every leaf judge, and the first fault, if any: a fault is a score of None, never 0."""
        scores: list[Score] = []
        fault: str | None = None
        for name in self.leaf:
            try:
                scores.extend(await self.scores(name, [branch], problem))
            except JudgeError as error:
                fault = fault or str(error)
                scores.append(Score(name, None, is_oracle=self.judges[name].is_oracle))
        return tuple(scores), fault

    async def scores(
        self, name: str, branches: Sequence[Branch], problem: Problem, *, attempt: int = 0
    ) -> tuple[Score, ...]:
        """One score a branch. Raises `JudgeError` if the judge raises, hangs or returns what is no verdict."""
        judge = self.judges[name]
        seen = problem if judge.is_oracle else problem.for_agents()
        try:
            async with asyncio.timeout(self.deadline_s):
                verdicts = await judge.judge(branches, seen)
        except TimeoutError:
            raise JudgeError(f"judge {name!r} gave nothing in {self.deadline_s} s") from None
        except RamifyError:
            raise
        except Exception as error:  # boundary to plug-in code: whatever a judge raises is its fault, recorded
            raise JudgeError(f"judge {name!r} raised {type(error).__name__}: {error}") from error
        if len(verdicts) != len(branches):
            raise JudgeError(f"judge {name!r} returned {len(verdicts)} verdicts for {len(branches)} branches")
        return tuple(_score(name, v, attempt=attempt, is_oracle=judge.is_oracle) for v in verdicts)


def _score(name: str, verdict: object, *, attempt: int, is_oracle: bool) -> Score:
    if not isinstance(verdict, Verdict):
        raise JudgeError(f"judge {name!r} returned {verdict!r}; it must return a Verdict")
    for value in (verdict.value, *verdict.parts.values()):
        if value is not None and not (isinstance(value, int | float) and math.isfinite(value)):
            raise JudgeError(f"judge {name!r} gave {value!r}; a score is a finite number or None")
    value = None if verdict.value is None else float(verdict.value)
    parts = tuple((part, float(v)) for part, v in verdict.parts.items())
    return Score(name, value, parts, attempt, is_oracle)
