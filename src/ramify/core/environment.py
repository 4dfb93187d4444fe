"""Environment: a world that answers the turns of an agent, with one episode per branch.

An episode is one state of a branch, as a tool session is. `branching` says what may happen where a path forks: `fork`
the episode, `replay` its turns in a new one and compare the observations, or `refuse`. A step gets all its randomness
from its seed, which is a hash of the path. So the state is a function of the path, whether it was forked or replayed.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol, runtime_checkable

from ramify.core.branch import Branch
from ramify.core.errors import ConfigError
from ramify.core.judge import Reply, Verdict
from ramify.core.problem import Problem
from ramify.core.tool import Branching, ToolResult

Takes = Literal["calls", "turns"]
"""calls: only calls of the environment's tools are steps. turns: a turn without a call is a step too."""
Noise = Literal["path", "shared", "none"]
"""path: every branch draws its own noise. shared: branches with equally many steps draw the same. none: steps draw
nothing."""
RewardRule = Literal["sum", "last", "discounted"]
"""How a path's reward is made. sum: of the steps' rewards and the score at the end. last: the score, or else the last
step's reward. discounted: the sum, with each step's reward times discount ** number of steps before it."""

ENVIRONMENT: Final = "environment"
"""Name of the judge whose value is the reward by the environment's rule."""
EARNED: Final = "earned"
"""Note on a node: what its step's reward adds to the reward of every path through it. Absent = nothing."""
STATE_NAME: Final = "state"
"""Key of an observation's metadata: a short name of the state, for people. It stands for an answer where there is no
text."""
REPLIES: Final = "replies"
"""Key of an observation's metadata: what the environment's model said in the step."""
TURN: Final = ""
"""Name of the tool in the record of a step that was a turn without a call."""

Observation = ToolResult
"""What a step returned: the text for the model, and the step's `reward`, `end`, `parts`, `status` and metadata."""


@dataclass(frozen=True, slots=True)
class AgentTurn:
    """What the model did in a turn: it called a tool, or it said something."""

    text: str = ""
    """The words of a turn without a call, as the format reads them: without thinking and end markers."""
    tool: str = ""
    """Name of the called tool; empty = the turn holds no call."""
    arguments: str = ""
    """Arguments of the call: JSON, or bare text for a tool that takes one text."""


class Episode(Protocol):
    """The state of an environment on one branch."""

    async def step(self, turn: AgentTurn, seed: int) -> Observation:
        """Carry out one turn. A move that is not allowed is an observation (status `error`), not an exception. All
        randomness of the step comes from `seed`, 0 to 2**64 - 1. Never called after an observation with an `end`."""
        ...

    async def fork(self) -> "Episode":
        """A copy with the same state, independent of this one. Only for environments whose branching is `fork`."""
        ...

    def digest(self) -> str | None:
        """A hash of the state, without times and other noise; None = unknown. A replayed episode must have the same."""
        ...

    async def score(self, branch: Branch, problem: Problem) -> Verdict | None:
        """The score of a path that has ended here; None = this environment scores only steps. For `fork`, it is called
        on a copy, otherwise on the episode itself."""
        ...

    async def close(self) -> None: ...


class AskModel(Protocol):
    """Asks the model of an environment."""

    async def __call__(self, prompt: str) -> Reply:
        """The reply to `prompt` in a fresh context. Raises `ToolError` if the model gives none, or if the step has
        asked too often."""
        ...


@runtime_checkable
class SamplingEpisode(Protocol):
    """An episode that asks a model, such as a simulated user. The replies are nodes of the role `user`: billed,
    recorded, never trained. A replay reads them from the record."""

    async def step_by(self, ask: AskModel, turn: AgentTurn, seed: int) -> Observation:
        """`Episode.step`, with a model to ask. Given the same replies, it must do the same."""
        ...


@runtime_checkable
class SamplingEnvironment(Protocol):
    """An environment whose episodes ask a model of the run."""

    @property
    def action(self) -> str:
        """Name of the run's action by which the model is asked; its `role` is `user`, its `edge` `quotes`."""
        ...


class Environment(Protocol):
    """Gives problems and opens episodes."""

    @property
    def name(self) -> str: ...

    @property
    def takes(self) -> Takes: ...

    @property
    def branching(self) -> Branching:
        """`fork`, `replay` or `refuse`; an episode is never shared."""
        ...

    @property
    def noise(self) -> Noise: ...

    @property
    def reward(self) -> RewardRule:
        """The rule that fits this environment; a run may choose another."""
        ...

    @property
    def needs_secret(self) -> bool:
        """Whether it needs the problem's secret, to simulate or to score. Its score is then an oracle's."""
        ...

    @property
    def schemas(self) -> Sequence[Mapping[str, Any]]:
        """Every tool that some problem may have, in OpenAI's function format (`core.tool.Described`)."""
        ...

    def problems(self, split: str, num_problems: int, seed: int) -> Sequence[Problem]:
        """`num_problems` problems with distinct uids. The question tells the rules and the first observation. Raises
        `ConfigError` if the split has too few."""
        ...

    async def open(self, problem: Problem, seed: int) -> Episode:
        """An episode in its initial state. All branches of a tree get the same `seed`. The secret is empty unless
        `needs_secret`."""
        ...


@dataclass(frozen=True, slots=True)
class Reward:
    """A rule with its discount: how the rewards of steps and the score make the reward of a path."""

    rule: RewardRule = "sum"
    discount: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.discount <= 1:
            raise ConfigError(f"environment.discount = {self.discount!r}: it is above 0 and at most 1")
        if self.discount != 1 and self.rule != "discounted":
            raise ConfigError(
                f"environment.discount = {self.discount!r} has no effect with the rule {self.rule!r}; set "
                "environment.reward = 'discounted'"
            )

    def earned(self, reward: float, num_steps: int) -> float:
        """What a step's reward adds to every path through it; not for the rule `last`. `num_steps`: steps before it."""
        return reward * self.discount**num_steps

    def of_path(self, rewards: Sequence[float | None], score: float | None) -> float | None:
        """The reward of a path with these rewards of its steps, in order; None = neither a step nor the score gave
        one."""
        given = [reward for reward in rewards if reward is not None]
        if score is None and not given:
            return None
        if self.rule == "last":
            return given[-1] if score is None else score
        steps = [self.earned(reward, i) for i, reward in enumerate(rewards) if reward is not None]
        return math.fsum([*steps, 0.0 if score is None else score * self.discount ** len(rewards)])
