"""Slime rewards: uses a trainer's own reward function as the judge of a run's leaves, so that credit uses its rewards.

It is `async (args, sample) -> number or mapping of parts`; a mapping needs a reward key. The sample is a copy of the
group's first sample with the leaf filled in; changes to it are lost. By the trainer's contract its response is the
whole transcript, observations included; its `loss_mask` says which tokens the model sampled. An exception is a fault of
that leaf, never a reward of 0.
"""

import asyncio
import copy
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from numbers import Real
from typing import Any, Final

from ramify.core.branch import Branch
from ramify.core.errors import ConfigError, JudgeError
from ramify.core.judge import Verdict
from ramify.core.problem import Problem
from ramify.core.task import Task
from ramify.integrations.background_loop import trainer
from ramify.integrations.slime.args import SlimeArgs, loaded
from ramify.judges.function import side_by_side
from ramify.service.reward import WithReward

ASKED: Final = "slime"
"""Key of the `RewardRequest` among a problem's secrets."""

RewardFunction = Callable[[Any, Any], Awaitable[Any]]


@dataclass(slots=True, eq=False)
class RewardRequest:
    """The inputs of a reward function for one problem, and the mappings that it returned."""

    args: Any
    """The trainer's arguments."""
    sample: Any
    """The group's first sample."""
    reward_key: str | None
    said: dict[tuple[bytes, float], Mapping[str, Any]] = field(default_factory=dict)
    """(ids of a leaf, its reward) -> the whole mapping that was returned for it."""


@dataclass(frozen=True, slots=True)
class TrainerReward:
    """An oracle, because samples hold labels. It has its own deadline, long enough for retries to a reward server."""

    function: RewardFunction
    name: str = "trainer_reward"
    is_oracle: bool = True
    deadline_s: float = 600.0

    async def judge(self, branches: Sequence[Branch], problem: Problem) -> Sequence[Verdict]:
        """One verdict per branch. Raises `JudgeError`, or what the function raises."""
        asked = problem.secret[ASKED]
        async with asyncio.timeout(self.deadline_s):
            return await side_by_side(self._verdict(branch, asked) for branch in branches)

    async def _verdict(self, branch: Branch, asked: RewardRequest) -> Verdict:
        said = await self.function(asked.args, _with_leaf(asked.sample, branch))
        if not isinstance(said, Mapping):
            return Verdict(_number(said))
        if asked.reward_key not in said:
            raise JudgeError(
                f"the reward has the parts {sorted(said)}; reward_key = {asked.reward_key!r} must be one of them"
            )
        value = _number(said[asked.reward_key])
        asked.said[branch.ids.tobytes(), value] = said
        parts = {str(part): float(v) for part, v in said.items() if isinstance(v, Real) and math.isfinite(v)}
        return Verdict(value, parts)


def rewarded(task: Task, args: SlimeArgs) -> Task:
    """`task`, judged by the trainer's reward if its arguments name one. Raises `ConfigError`."""
    return WithReward(task, TrainerReward(_function(args))) if args.has_rm else task


def _function(args: SlimeArgs) -> RewardFunction:
    """The trainer's own entry to its rewards; without a trainer, the function itself."""
    package = trainer()
    if package is not None:
        return import_module(f"{package}.rollout.rm_hub").async_rm
    if args.rm_path is None:
        raise ConfigError(f"rm_type = {args.rm_type!r} needs slime, which is not loaded: name a custom_rm_path")
    return loaded(args.rm_path)


def _with_leaf(sample: Any, branch: Branch) -> Any:
    """A copy of the sample, filled with a leaf."""
    filled = copy.copy(sample)
    filled.tokens = branch.ids.tolist()
    filled.response = branch.transcript
    filled.response_length = len(branch) - branch.num_prompt
    filled.loss_mask = branch.is_sampled[branch.num_prompt :].astype(int).tolist()
    filled.status = type(sample).Status("completed")
    filled.metadata = dict(sample.metadata or {})
    return filled


def _number(said: object) -> float:
    if not isinstance(said, Real) or not math.isfinite(said):
        raise JudgeError(f"the reward function returned {said!r:.200}; it must return a finite number or a mapping")
    return float(said)
