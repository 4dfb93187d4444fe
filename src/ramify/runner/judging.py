"""Judging: run judges at the edge, so that a judge's fault is data and ground truth goes to oracles only."""

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real

from ramify.core.branch import Branch
from ramify.core.command import Score
from ramify.core.errors import ContractError, EnginesDown, JudgeError, nearest
from ramify.core.judge import Judge, Verdict
from ramify.core.problem import Problem
from ramify.runner.deadline import is_being_cancelled
from ramify.tools.output import told


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
        if name not in self.judges:
            raise ContractError(f"there is no judge {name!r}; {nearest(name, self.judges)}")
        judge = self.judges[name]
        verdicts = await self._verdicts(judge, branches, problem if judge.is_oracle else problem.for_agents())
        if not isinstance(verdicts, Sequence) or len(verdicts) != len(branches):
            raise JudgeError(f"judge {name!r} returned {verdicts!r:.200}; it must return {len(branches)} verdicts")
        return tuple(_score(name, v, attempt=attempt, is_oracle=judge.is_oracle) for v in verdicts)

    async def _verdicts(self, judge: Judge, branches: Sequence[Branch], problem: Problem) -> object:
        """Boundary to plug-in code: whatever a judge raises is its fault, recorded."""
        scope = asyncio.timeout(self.deadline_s)
        try:
            async with scope:
                return await judge.judge(branches, problem)
        except (JudgeError, EnginesDown):
            raise
        except asyncio.CancelledError:
            if is_being_cancelled():
                raise
            raise JudgeError(f"judge {judge.name!r} cancelled itself") from None
        except Exception as error:
            if scope.expired():
                raise JudgeError(f"judge {judge.name!r} gave nothing in {self.deadline_s:g} s") from None
            raise JudgeError(f"judge {judge.name!r} raised {told(error)}") from error


def _score(name: str, verdict: object, *, attempt: int, is_oracle: bool) -> Score:
    if not isinstance(verdict, Verdict) or not isinstance(verdict.parts, Mapping):
        raise JudgeError(f"judge {name!r} returned {verdict!r:.200}; it must return a Verdict")
    value = None if verdict.value is None else _number(name, verdict.value)
    parts = tuple((part, _number(name, v)) for part, v in verdict.parts.items())
    return Score(name, value, parts, attempt, is_oracle)


def _number(name: str, value: object) -> float:
    if not isinstance(value, Real) or not math.isfinite(value):
        raise JudgeError(f"judge {name!r} gave {value!r:.200}; a score is a finite number, or None as its value")
    return float(value)
