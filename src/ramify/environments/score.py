"""EnvironmentScore: the judge whose value is the reward of a path by its environment.

It composes the rewards of the path's steps with the episode's own score, by the run's rule. It is an oracle if the
environment needs the problem's secret.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ramify.core.branch import Branch
from ramify.core.environment import ENVIRONMENT, Reward
from ramify.core.errors import JudgeError
from ramify.core.judge import Verdict
from ramify.core.problem import Problem
from ramify.core.segment import ToolCall
from ramify.core.tool import STATEFUL


@dataclass(frozen=True, slots=True)
class EnvironmentScore:
    """The reward of a path by its environment."""

    tools: frozenset[str]
    """Names of the environment's tools, as the calls of a branch name them."""
    reward: Reward = field(default_factory=Reward)
    is_oracle: bool = False
    action: str | None = None
    """The run's action by which the environment asks its model; None = it asks none."""
    name: str = ENVIRONMENT

    async def judge(self, branches: Sequence[Branch], problem: Problem) -> Sequence[Verdict]:
        """Raises `JudgeError`: only a run that grows has the episodes."""
        raise JudgeError(
            f"judge {self.name!r} scores a state, and only a run that grows has the states of its branches"
        )

    def of(self, branch: Branch, score: Verdict | None) -> Verdict:
        """The reward of `branch`, whose episode gave `score`. Its parts: `steps`, `score`, and the parts of both."""
        steps = self.steps(branch.tool_calls)
        value = None if score is None else score.value
        total = self.reward.of_path([step.reward for step in steps], value)
        parts: dict[str, float] = {}
        for name, amount in (part for step in steps for part in step.parts.items()):
            parts[name] = parts.get(name, 0.0) + amount
        if any(step.reward is not None for step in steps):
            parts["steps"] = sum(step.reward or 0.0 for step in steps)
        own = {} if value is None else {"score": value}
        return Verdict(total, {**parts, **own, **({} if score is None else score.parts)})

    def steps(self, calls: Iterable[ToolCall]) -> list[ToolCall]:
        """The steps among the calls of a branch."""
        return [call for call in calls if call.tool in self.tools and call.status in STATEFUL]
