"""Pruning: the prune rule of a run, and the judge of steps whose value the rule reads, if any."""

from dataclasses import dataclass, replace
from functools import partial

from ramify import plugins
from ramify.config.configure import TASK_PRUNE
from ramify.config.run_config import GrowthConfig
from ramify.core.branch import Branch
from ramify.core.command import Score
from ramify.core.errors import ConfigError, JudgeError, nearest
from ramify.core.judge import SamplingJudge
from ramify.core.problem import Problem
from ramify.core.task import Task
from ramify.runner.judging import Judging, ScoreState
from ramify.strategies.parts.prune import Prune


@dataclass(frozen=True, slots=True)
class PruneAnswer:
    """The answer for one path."""

    reason: str | None
    """Why to give the path up; None = it goes on."""
    scores: tuple[Score, ...] = ()
    """The judge's scores, if there is a judge."""
    fault: str | None = None
    """Why the judge gave no score; the path then goes on."""


@dataclass(frozen=True, slots=True)
class PruneRule:
    """A prune rule, for paths that have not ended."""

    rule: Prune
    judging: Judging
    judge: str | None = None

    @classmethod
    def of(cls, growth: GrowthConfig, task: Task, judging: Judging) -> "PruneRule | None":
        """The prune rule of a run, or None. Raises `ConfigError` for a judge that may not be asked."""
        if growth.prune is None:
            return None
        if growth.prune_judge is not None:
            _check(growth.prune_judge, judging)
        found: Prune = task.prune if growth.prune == TASK_PRUNE else plugins.find("prune", growth.prune)
        return cls(partial(found, **growth.prune_options), judging, growth.prune_judge)

    async def ask(self, branch: Branch, problem: Problem, of_state: ScoreState | None = None) -> PruneAnswer:
        """Whether to give the path up. `of_state` scores the state of an environment. A judge's fault is recorded as a
        score of None."""
        if self.judge is None:
            return PruneAnswer(self.rule(branch))
        try:
            (score,) = await self.judging.scores(self.judge, [branch], problem, of_state=of_state)
        except JudgeError as error:
            return PruneAnswer(None, (Score(self.judge, None, is_of_step=True),), str(error))
        reason = None if score.value is None else self.rule(branch, value=score.value)
        return PruneAnswer(reason, (replace(score, is_of_step=True),))


def _check(name: str, judging: Judging) -> None:
    """Refuse a judge that does not exist, that knows the answer, or that asks a model."""
    if name not in judging.judges:
        raise ConfigError(
            f"growth.prune_judge = {name!r}: the run has no such judge; {nearest(name, judging.judges)} Name one by "
            f"judges.{name}.kind = ..."
        )
    judge = judging.judges[name]
    if isinstance(judge, SamplingJudge):
        raise ConfigError(
            f"growth.prune_judge = {name!r}: it asks a model, which only a Judge command can pay for; a strategy that "
            "judges steps gives up by it (`reject`)"
        )
    if judge.is_oracle:
        raise ConfigError(f"growth.prune_judge = {name!r}: it knows the answer, and may not say which paths go on")
