"""Episodes: an environment as tools that act on one state.

So an episode is kept, forked, replayed and evicted by the code that keeps the sessions of tools. Each function of the
environment is a tool; a turn without a call is a call of the tool with the empty name.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

from ramify.core.branch import Branch
from ramify.core.environment import TURN, AgentTurn, AskModel, Environment, Episode, Observation, SamplingEpisode
from ramify.core.errors import ConfigError, ToolError
from ramify.core.judge import Verdict
from ramify.core.problem import Problem
from ramify.core.tool import STATE_DIGEST, Branching, ChecksStart, Lasting, ToolSession

BRANCHINGS = ("fork", "replay", "refuse")


@runtime_checkable
class LimitsSessions(Protocol):
    """An environment whose waiting episodes hold something that is scarce, such as processes."""

    @property
    def max_sessions(self) -> int | None:
        """Episodes that may wait for later forks; the oldest are closed, and replayed when they are needed."""
        ...


@dataclass(frozen=True, slots=True)
class EnvironmentTool:
    """One way to act in an environment: one of its functions, or a turn without a call."""

    environment: Environment
    schema: Mapping[str, Any]
    """OpenAI's function format; empty = a turn without a call."""

    @property
    def name(self) -> str:
        return self.schema["name"] if self.schema else TURN

    @property
    def state(self) -> str:
        return self.environment.name

    @property
    def branching(self) -> Branching:
        return self.environment.branching

    def check_start(self) -> None:
        """What the environment checks before a run grows. Raises `ConfigError`."""
        if isinstance(self.environment, ChecksStart):
            self.environment.check_start()

    async def let_go(self) -> None:
        """Release what the environment holds for the run."""
        if isinstance(self.environment, Lasting):
            await self.environment.let_go()

    async def open(self, problem: Problem) -> "EpisodeSession":
        """An episode of the seed 0."""
        return await self.open_seeded(problem, 0)

    async def open_seeded(self, problem: Problem, seed: int) -> "EpisodeSession":
        """The problem still holds its secret, which the environment gets only if it needs it."""
        environment = self.environment
        seen = problem if environment.needs_secret else problem.for_agents()
        return EpisodeSession(await environment.open(seen, seed), self.name)

    @property
    def max_sessions(self) -> int | None:
        """Episodes that may wait for later forks; None = as many as a run allows."""
        return self.environment.max_sessions if isinstance(self.environment, LimitsSessions) else None

    def on(self, session: ToolSession) -> "EpisodeSession":
        assert isinstance(session, EpisodeSession)
        return EpisodeSession(session.episode, self.name)


@dataclass(frozen=True, slots=True)
class EpisodeSession:
    """An episode, acted on by the tool called `tool`."""

    episode: Episode
    tool: str

    async def call(self, arguments: str) -> Observation:
        return await self.step(arguments, 0)

    async def step(self, arguments: str, seed: int, ask: AskModel | None = None) -> Observation:
        """Carry out a call, or a turn whose text is `arguments`. The observation holds the digest of the state. `ask`:
        the model of an environment that samples."""
        turn = AgentTurn(text=arguments) if self.tool == TURN else AgentTurn(tool=self.tool, arguments=arguments)
        if isinstance(self.episode, SamplingEpisode):
            if ask is None:
                raise ToolError("tool_gave_up", "it asks a model, and there is none here; it needs an action of a run")
            observed = await self.episode.step_by(ask, turn, seed)
        else:
            observed = await self.episode.step(turn, seed)
        if not isinstance(observed, Observation) or (digest := self.episode.digest()) is None:
            return observed
        return replace(observed, metadata={**observed.metadata, STATE_DIGEST: digest})

    async def score(self, branch: Branch, problem: Problem) -> Verdict | None:
        return await self.episode.score(branch, problem)

    async def fork(self) -> "EpisodeSession":
        return EpisodeSession(await self.episode.fork(), self.tool)

    async def close(self) -> None:
        await self.episode.close()


def environment_tools(environment: Environment) -> tuple[EnvironmentTool, ...]:
    """The ways to act in `environment`. Raises `ConfigError` for one that cannot be used."""
    if environment.branching not in BRANCHINGS:
        raise ConfigError(
            f"environment {environment.name!r} has branching = {environment.branching!r}; an episode belongs to one "
            f"branch: {', '.join(BRANCHINGS)}"
        )
    if environment.takes == "calls" and not environment.schemas:
        raise ConfigError(
            f"environment {environment.name!r} takes calls and has no function to call; give it schemas, or takes = "
            "'turns'"
        )
    unnamed = [schema for schema in environment.schemas if not schema.get("name")]
    if unnamed:
        raise ConfigError(f"environment {environment.name!r}: a function needs a name, got {unnamed[0]!r:.200}")
    every = [*environment.schemas, *([{}] if environment.takes == "turns" else [])]
    return tuple(EnvironmentTool(environment, schema) for schema in every)
