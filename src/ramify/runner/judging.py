"""Judging: runs judges, records their faults, and gives ground truth only to oracles."""

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from numbers import Real
from typing import cast

from ramify.core.branch import Branch
from ramify.core.command import Score
from ramify.core.errors import ContractError, EnginesDown, JudgeError, nearest
from ramify.core.judge import BranchJudge, Closable, Punctual, SamplingJudge, Verdict
from ramify.core.problem import Problem
from ramify.edge.error_text import error_text
from ramify.environments.score import EnvironmentScore
from ramify.runner.asking import Asking, Questions
from ramify.runner.deadline import is_being_cancelled

ScoreState = Callable[[Branch, Problem, EnvironmentScore], Awaitable[Verdict]]
"""Scores a branch by the state of its environment at the branch's end. Raises `JudgeError`."""


@dataclass(frozen=True, slots=True)
class Judging:
    """The judges of a run. Those in `leaf` score every leaf when it ends; the last one's value is its reward."""

    judges: Mapping[str, BranchJudge | SamplingJudge]
    leaf: tuple[str, ...]
    deadline_s: float = 60.0
    """Seconds for one judgement, for judges that have no deadline of their own."""
    asking: Asking | None = None
    """How judges ask models; None = no judge does."""
    deadlines: Mapping[str, float | None] = field(init=False)
    """Judge that scores by itself -> seconds for one judgement; None = it keeps a deadline of its own."""

    def __post_init__(self) -> None:
        alone = {name: judge for name, judge in self.judges.items() if not isinstance(judge, SamplingJudge)}
        deadlines = {name: None if isinstance(j, Punctual) else self.deadline_s for name, j in alone.items()}
        object.__setattr__(self, "deadlines", deadlines)

    async def leaf_scores(
        self, branch: Branch, problem: Problem, of_state: ScoreState | None = None
    ) -> tuple[tuple[Score, ...], str | None]:
        """Scores of a leaf by every leaf judge, and the first fault, if any. A fault gives a score of None, never 0."""
        scores: list[Score] = []
        fault: str | None = None
        for name in self.leaf:
            try:
                scores.extend(await self.scores(name, [branch], problem, of_state=of_state))
            except JudgeError as error:
                fault = fault or str(error)
                scores.append(Score(name, None, is_oracle=self.judges[name].is_oracle))
        return tuple(scores), fault

    def named(self, name: str) -> BranchJudge | SamplingJudge:
        """The judge with this name. Raises `ContractError` if the run has none."""
        if name not in self.judges:
            raise ContractError(f"there is no judge {name!r}; {nearest(name, self.judges)}")
        return self.judges[name]

    async def scores(
        self,
        name: str,
        branches: Sequence[Branch],
        problem: Problem,
        *,
        attempt: int = 0,
        of_state: ScoreState | None = None,
    ) -> tuple[Score, ...]:
        """One score per branch. `of_state` scores the state of an environment. Raises `JudgeError` if the judge raises,
        hangs or returns no valid verdict."""
        judge = self.named(name)
        if name not in self.deadlines:
            raise JudgeError(f"judge {name!r} asks a model, which only a Judge command can pay for")
        seen = problem if judge.is_oracle else problem.for_agents()
        if isinstance(judge, EnvironmentScore) and of_state is not None:
            verdicts = [await of_state(branch, seen, judge) for branch in branches]
            return _scores(judge, verdicts, len(branches), attempt=attempt)
        judging = partial(cast(BranchJudge, judge).judge, branches, seen)
        verdicts = await self._verdicts(judging, name, deadline_s=self.deadlines[name])
        return _scores(judge, verdicts, len(branches), attempt=attempt)

    async def asked(
        self, judge: SamplingJudge, nodes: Sequence[Sequence[Branch]], questions: Questions, *, attempt: int
    ) -> tuple[Score, ...]:
        """Like `scores`, for a judge that asks models about nodes with these contexts. Its replies are recorded."""
        seen = questions.problem if judge.is_oracle else questions.problem.for_agents()
        try:
            verdicts = await self._verdicts(partial(judge.judge_by, questions, nodes, seen), judge.name)
            return _scores(judge, verdicts, len(nodes), attempt=attempt)
        finally:
            if not is_being_cancelled():
                questions.close()

    async def close(self) -> None:
        """Close what the judges hold. Boundary to plug-in code: a failure of one judge does not stop the others."""
        for judge in self.judges.values():
            if isinstance(judge, Closable):
                with suppress(Exception):
                    await judge.close()

    async def _verdicts(
        self, judging: Callable[[], Awaitable[object]], name: str, *, deadline_s: float | None = None
    ) -> object:
        """Boundary to plug-in code: whatever a judge raises is recorded as its fault."""
        scope = asyncio.timeout(deadline_s)
        try:
            async with scope:
                return await judging()
        except (JudgeError, EnginesDown):
            raise
        except asyncio.CancelledError:
            if is_being_cancelled():
                raise
            raise JudgeError(f"judge {name!r} cancelled itself") from None
        except Exception as error:
            if scope.expired():
                raise JudgeError(f"judge {name!r} gave nothing in {deadline_s or 0:g} s") from None
            raise JudgeError(f"judge {name!r} raised {error_text(error)}") from error


def _scores(judge: BranchJudge | SamplingJudge, verdicts: object, num_nodes: int, *, attempt: int) -> tuple[Score, ...]:
    if not isinstance(verdicts, Sequence) or len(verdicts) != num_nodes:
        raise JudgeError(f"judge {judge.name!r} returned {verdicts!r:.200}; it must return {num_nodes} verdicts")
    return tuple(_score(judge.name, v, attempt=attempt, is_oracle=judge.is_oracle) for v in verdicts)


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
