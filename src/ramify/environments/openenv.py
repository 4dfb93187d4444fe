"""OpenEnv: environments behind a server of OpenEnv, by its URL.

An episode is a WebSocket session of the server. The protocol can neither fork a session nor seed a step, so a fork
replays. The digest is a hash of what the server tells as its state.
"""

import asyncio
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from ramify.core.branch import Branch
from ramify.core.environment import AgentTurn, Noise, Observation
from ramify.core.errors import ConfigError, ToolError
from ramify.core.judge import Verdict
from ramify.core.problem import Problem
from ramify.core.tool import Branching
from ramify.environments.blocking import THREADS
from ramify.environments.openenv_session import OpenEnvSession, action_schema
from ramify.environments.text_games import IllegalMove, TextGames, action_in, limited


@dataclass(frozen=True, kw_only=True)
class OpenEnv(TextGames):
    """An environment of a server."""

    name: ClassVar[str] = "openenv"
    library: ClassVar[str] = "aiohttp"
    noise: ClassVar[Noise] = "none"
    branching: Branching = "replay"
    url: str
    """Address of the server, such as `http://127.0.0.1:8000`."""
    id: str = "openenv"
    """Name of the environment, for the uids of problems."""
    action_field: str = ""
    """Field of an action that takes what a turn chose, as a text, which servers convert; empty = a turn's last line is
    the whole action as JSON."""
    text_field: str = ""
    """Field of an observation that the model reads; empty = all fields as JSON."""
    reset: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Further arguments of the server's `reset`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.branching == "fork" or self.runs_in != "thread":
            raise ConfigError("environment 'openenv': a session of a server cannot be forked; use branching = 'replay'")

    def title(self) -> str:
        return self.id

    def problems(self, split: str, num_problems: int, seed: int) -> Sequence[Problem]:
        self.prepare()
        made = self._made(split, self.columns(split, num_problems, seed))
        try:
            return THREADS.submit(asyncio.run, made).result()
        except ToolError as error:
            raise ConfigError(f"environment 'openenv': no problems: {error}") from error

    async def _made(self, split: str, columns: Sequence[Mapping[str, Any]]) -> list[Problem]:
        schema = await action_schema(self.url)
        problems: list[Problem] = []
        for public in columns:
            session = await OpenEnvSession.opened(self.url)
            try:
                first = await session.ask("reset", {**self.reset, "seed": public["seed"]})
                shown = (self.rules or self.default_rules, self._text(first), schema)
                problems.append(Problem(self.uid(public), "\n\n".join(filter(None, shown)), public, split=split))
            finally:
                await session.close()
        return problems

    async def open(self, problem: Problem, seed: int) -> "OpenEnvEpisode":
        session = await OpenEnvSession.opened(self.url)
        try:
            await session.ask("reset", {**self.reset, "seed": problem.public["seed"]})
            return OpenEnvEpisode(self, session, await session.digest())
        except BaseException:
            await session.close()
            raise

    def action(self, text: str) -> Mapping[str, Any]:
        """The action of a turn. Raises `IllegalMove`."""
        chosen = action_in(text, re.compile(self.action_pattern), "")
        if self.action_field:
            return {self.action_field: chosen}
        try:
            said = json.loads(chosen)
        except ValueError:
            said = None
        if not isinstance(said, dict):
            raise IllegalMove(f"{chosen[:80]!r} is no action: an action is a JSON object in one line.")
        return said

    def observed(self, answer: Mapping[str, Any]) -> Observation:
        reward = answer.get("reward")
        end = "done" if answer.get("done") else None
        return Observation(self._text(answer), reward=None if reward is None else float(reward), end=end)

    def _text(self, answer: Mapping[str, Any]) -> str:
        seen = answer.get("observation", {})
        return str(seen.get(self.text_field, "")) if self.text_field else json.dumps(seen, ensure_ascii=False)


@dataclass(slots=True)
class OpenEnvEpisode:
    """A session as an episode."""

    environment: OpenEnv
    session: "OpenEnvSession"
    _digest: str
    num_turns: int = 0

    async def step(self, turn: AgentTurn, seed: int) -> Observation:
        """Raises `ToolError` if the server is gone."""
        self.num_turns += 1
        try:
            answer = await self.session.ask("step", self.environment.action(turn.text))
            observed = self.environment.observed(answer)
            self._digest = await self.session.digest()
        except IllegalMove as error:
            observed = Observation(str(error), "error")
        return limited(observed, self.num_turns, self.environment.max_steps)

    async def fork(self) -> "OpenEnvEpisode":
        raise NotImplementedError

    def digest(self) -> str | None:
        return f"{self.num_turns} {self._digest}"

    async def score(self, branch: Branch, problem: Problem) -> Verdict | None:
        return None

    async def close(self) -> None:
        await self.session.close()
