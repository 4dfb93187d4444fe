"""Reward: makes a judge of the user's reward function, so that rewards are on the tree before credit is computed.

Its verdict is recorded with the leaf, so a resumed service does not ask again.
"""

from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any, Final

import numpy as np

from ramify.config.service_config import ServiceConfig
from ramify.core.branch import Branch
from ramify.core.errors import ContractError, JudgeError
from ramify.core.format import Format
from ramify.core.judge import BranchJudge, Verdict
from ramify.core.problem import Problem
from ramify.core.task import Task
from ramify.core.tool import Tool
from ramify.judges.function import side_by_side
from ramify.rows.sample import Sample
from ramify.service.functions import Function


class RewardFunction:
    """The judge `reward`. `function` takes (args, sample) and returns a number, or named parts of which `reward_key`
    names the reward. The sample has the gold answer as its label only if `label_key` names its column."""

    def __init__(
        self, function: Function, args: Any, *, deadline_s: float, reward_key: str | None, label_key: str | None
    ) -> None:
        self.name: Final = "reward"
        self.deadline_s: Final = deadline_s
        self.is_oracle: Final = label_key is not None
        self._function = function
        self._args = args
        self._reward_key = reward_key
        self._label_key = label_key

    async def judge(self, branches: Sequence[Branch], problem: Problem) -> Sequence[Verdict]:
        """Calls the function once per branch, concurrently. Raises `JudgeError`."""
        return await side_by_side(self._verdict(branch, problem) for branch in branches)

    async def _verdict(self, branch: Branch, problem: Problem) -> Verdict:
        label = None if self._label_key is None else problem.secret.get(self._label_key)
        sample = sample_of_branch(branch, problem, label=label)
        try:
            return self._read(await self._function(self._args, sample, deadline_s=self.deadline_s))
        except ContractError as error:
            raise JudgeError(str(error)) from error

    def _read(self, said: Any) -> Verdict:
        if isinstance(said, Real) and not isinstance(said, bool):
            return Verdict(float(said))
        if isinstance(said, Mapping) and all(isinstance(part, Real) for part in said.values()):
            parts = {str(name): float(part) for name, part in said.items()}
            if self._reward_key in parts:
                return Verdict(parts[self._reward_key], parts)
            raise self._function.fault(
                f"returned the parts {sorted(parts)}; service.reward_key = {self._reward_key!r} must be one of them"
            )
        raise self._function.fault(f"returned {said!r:.200}; it must return a number, or a mapping of named numbers")


def rewarded(task: Task, function: Function | None, args: Any, service: ServiceConfig) -> Task:
    """The task, judged by the user's reward function if there is one."""
    if function is None:
        return task
    judge = RewardFunction(
        function,
        args,
        deadline_s=service.function_deadline_s,
        reward_key=service.reward_key,
        label_key=service.label_key,
    )
    return WithReward(task, judge)


class WithReward:
    """The same task with another judge of its leaves."""

    def __init__(self, task: Task, judge: BranchJudge) -> None:
        self._task = task
        self._judge = judge

    @property
    def format(self) -> Format:
        return self._task.format

    @property
    def tools(self) -> Sequence[Tool]:
        return self._task.tools

    @property
    def judges(self) -> Sequence[BranchJudge]:
        return (self._judge,)

    def problems(self, split: str, num_problems: int, seed: int) -> Sequence[Problem]:
        return self._task.problems(split, num_problems, seed)

    def prune(self, branch: Branch) -> str | None:
        return self._task.prune(branch)

    def is_same_answer(self, one: str, other: str) -> bool:
        return self._task.is_same_answer(one, other)


def sample_of_branch(branch: Branch, problem: Problem, *, label: Any = None) -> Sample:
    """A path as a sample: its tokens and texts, with the problem's public columns. It has no reward yet."""
    ids, mask = branch.ids, branch.is_sampled
    start = int(np.argmax(mask)) if mask.any() else len(ids)
    return Sample(
        status=Sample.Status.COMPLETED,
        prompt=branch.codec.decode(ids[:start]),
        tokens=ids.tolist(),
        response=branch.codec.decode(ids[start:]),
        response_length=len(ids) - start,
        loss_mask=mask[start:].astype(int).tolist(),
        label=None if label is None else str(label),
        metadata={**problem.public, "uid": problem.uid},
    )
