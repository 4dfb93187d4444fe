"""EnvironmentTask: an environment as a task: its problems, its functions as tools, and its reward as the judge."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from ramify.core.branch import Branch
from ramify.core.environment import Environment, Reward, SamplingEnvironment
from ramify.core.format import Format
from ramify.core.judge import BranchJudge
from ramify.core.problem import Problem
from ramify.core.tool import Tool
from ramify.environments.episodes import EnvironmentTool, environment_tools
from ramify.environments.score import EnvironmentScore
from ramify.formats.tags import TagFormat
from ramify.judges.exact import is_same_answer


@runtime_checkable
class HasFormat(Protocol):
    """An environment whose agents speak in a format of its own."""

    @property
    def format(self) -> Format: ...


@dataclass(frozen=True, slots=True)
class CallTags(TagFormat):
    """Tags for calls alone: nothing that is said is an answer, because the world gives the reward."""

    def answer(self, said: str) -> str | None:
        return None


@dataclass(frozen=True, slots=True)
class EnvironmentTask:
    """The task of acting in `environment`. Raises `ConfigError` for an environment that cannot be used."""

    environment: Environment
    reward: Reward | None = None
    """None = the environment's own rule."""
    answer_tag: str | None = None
    """Tag around an answer, which ends the path; None = an answer does not end it."""
    tools: Sequence[Tool] = field(init=False)
    judges: Sequence[BranchJudge] = field(init=False)
    format: Format = field(init=False)

    def __post_init__(self) -> None:
        tools = environment_tools(self.environment)
        tags = {name: name for tool in tools if (name := tool.name)}
        format: Format = CallTags(tags=tags, stops_at_answer=False)
        if self.answer_tag is not None:
            format = TagFormat(tags=tags, answer_tag=self.answer_tag)
        if isinstance(self.environment, HasFormat):
            format = self.environment.format
        object.__setattr__(self, "tools", tools)
        object.__setattr__(self, "judges", (environment_score(tools, self.reward),))
        object.__setattr__(self, "format", format)

    @property
    def has_plain_format(self) -> bool:
        """Whether the environment has no format of its own: with an engine of messages, its functions are then called
        natively."""
        return not isinstance(self.environment, HasFormat)

    def problems(self, split: str, num_problems: int, seed: int) -> Sequence[Problem]:
        return self.environment.problems(split, num_problems, seed)

    def prune(self, branch: Branch) -> str | None:
        return None

    def is_same_answer(self, one: str, other: str) -> bool:
        return is_same_answer(one, other)


def environment_score(tools: Sequence[EnvironmentTool], reward: Reward | None = None) -> EnvironmentScore:
    """The judge that gives the reward of the environment of `tools`. `reward` None = the environment's own rule."""
    environment = tools[0].environment
    return EnvironmentScore(
        frozenset(tool.name for tool in tools),
        Reward(environment.reward) if reward is None else reward,
        is_oracle=environment.needs_secret,
        action=environment.action if isinstance(environment, SamplingEnvironment) else None,
    )
