"""Check: tries an environment as a tree would use it, and says what was found.

It plays turns, forks, acts differently in both, replays everything in fresh episodes and compares texts, statuses,
rewards, ends and digests. So it finds state that branches share, noise that does not come from the seed, and secrets
in texts.
"""

import asyncio
import json
import random
import re
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any, Final, Protocol, runtime_checkable

from ramify.core.environment import TURN, AgentTurn, Environment
from ramify.core.judge import Reply
from ramify.core.problem import Problem
from ramify.core.seeds import step_seed, world_seed
from ramify.core.tool import STATE_DIGEST, ToolResult
from ramify.edge.error_text import error_text
from ramify.environments.episodes import EpisodeSession, environment_tools
from ramify.tools.output import made_safe

MAX_BYTES: Final = 65536
PLANTED: Final = "planted-secret-7f3a"
"""Stands among the secrets of a problem, and must be in no text."""


@runtime_checkable
class HasExamples(Protocol):
    """An environment that knows turns that make sense."""

    def examples(self, problem: Problem) -> Sequence[AgentTurn]:
        """Some turns that are allowed in the initial state or later."""
        ...


@dataclass(frozen=True, slots=True)
class EnvironmentFinding:
    """What one rule found."""

    rule: str
    fault: str | None
    """None = the rule holds."""


@dataclass(slots=True)
class EnvironmentCheck:
    """Plays with one environment. `turns`: what the agent may do; empty = the environment's examples, or words of the
    question."""

    environment: Environment
    turns: Sequence[AgentTurn] = ()
    num_problems: int = 2
    num_turns: int = 12
    seed: int = 0
    num_steps: int = field(default=0, init=False)
    """Steps that were made."""
    num_digests: int = field(default=0, init=False)
    """Steps behind which the state had a digest."""
    _made: Sequence[Problem] = field(default=(), init=False)
    """The problems, once they are made: some worlds take seconds to make one."""

    async def findings(self) -> list[EnvironmentFinding]:
        """Try every rule, then let go of what the environment holds. Boundary to plug-in code: whatever it raises is
        the fault of the rule that met it. Raises `ConfigError` if no run could begin with it."""
        tool = environment_tools(self.environment)[0]
        await asyncio.to_thread(tool.check_start)
        found: list[EnvironmentFinding] = []
        try:
            for name, rule in RULES.items():
                try:
                    await rule(self)
                    found.append(EnvironmentFinding(name, None))
                except Exception as error:  # noqa: BLE001 - the boundary
                    found.append(EnvironmentFinding(name, error_text(error)))
        finally:
            await tool.let_go()
        return found

    # -- rules --------------------------------------------------------------------------------------------------------

    async def plays(self) -> None:
        """Every turn is answered, rewards are finite, and an end ends the path."""
        for problem in self._problems():
            await self._played(problem, self._plan(problem, "plays"))

    async def repeats(self) -> None:
        """The same turns with the same seeds give the same."""
        for problem in self._problems():
            plan = self._plan(problem, "repeats")
            _compare(await self._played(problem, plan), await self._played(problem, plan), "a replay")

    async def divides(self) -> None:
        """A fork goes on like a fresh replay of its path, and so does the episode that it was forked from."""
        if self.environment.branching != "fork":
            return
        for problem in self._problems():
            plan, other = self._plan(problem, "trunk"), self._plan(problem, "branch")
            for depth in range(0, len(plan), 3):
                trunk = await self._opened(problem)
                past = await self._all(trunk, plan[:depth])
                if past and past[-1].end is not None:
                    await trunk.close()
                    break
                branch = await trunk.fork()
                of_branch = await self._all(branch, other[depth:])
                of_trunk = await self._all(trunk, plan[depth:])
                await branch.close()
                await trunk.close()
                alone = await self._played(problem, [*plan[:depth], *other[depth:]])
                _compare([*past, *of_branch], alone, f"a fork after {depth} turns")
                _compare(
                    [*past, *of_trunk], await self._played(problem, plan), f"the trunk of a fork after {depth} turns"
                )

    async def keeps_apart(self) -> None:
        """Two episodes that act in turns go on as each does alone, also when one of them is closed."""
        one, *others = self._problems()
        two = others[0] if others else one
        plans = [self._plan(one, "one"), self._plan(two, "two")]
        episodes = [await self._opened(one), await self._opened(two)]
        seen: list[list[ToolResult]] = [[], []]
        for number in range(self.num_turns):
            if number == self.num_turns // 2:
                await episodes[1].close()
            for i in (0, 1) if number < self.num_turns // 2 else (0,):
                if not (seen[i] and seen[i][-1].end is not None):
                    seen[i].append(await self._step(episodes[i], plans[i][number]))
        await episodes[0].close()
        for problem, plan, own in zip((one, two), plans, seen, strict=True):
            _compare(own, (await self._played(problem, plan))[: len(own)], "an episode beside another")

    async def tells_no_secret(self) -> None:
        """No text holds what is planted among the problem's secrets. What the world itself tells is its own affair: a
        library tells the answer to whoever finds it."""
        for problem in self._problems():
            planted = replace(problem, secret={**problem.secret, "planted": PLANTED})
            for result in await self._played(planted, self._plan(problem, "secret")):
                if PLANTED in result.text or PLANTED in repr(result.metadata):
                    raise AssertionError(
                        f"an observation tells what is planted among the secrets: {result.text!r:.200}"
                    )

    # -- playing ------------------------------------------------------------------------------------------------------

    def _problems(self) -> Sequence[Problem]:
        if not self._made:
            self._made = self.environment.problems("heldout", self.num_problems, self.seed)
        return self._made

    def _plan(self, problem: Problem, name: str) -> list[tuple[AgentTurn, int]]:
        """Random turns, each with the seed that a path of this name would have there."""
        rng = random.Random(f"{self.seed} {name}")
        turns = self.turns or _examples(self.environment, problem)
        seed = 0 if self.environment.noise == "shared" else rng.getrandbits(64)
        is_quiet = self.environment.noise == "none"
        return [(rng.choice(turns), 0 if is_quiet else step_seed(seed, i)) for i in range(self.num_turns)]

    async def _opened(self, problem: Problem) -> EpisodeSession:
        return await environment_tools(self.environment)[0].open_seeded(problem, world_seed(self.seed))

    async def _played(self, problem: Problem, plan: Sequence[tuple[AgentTurn, int]]) -> list[ToolResult]:
        episode = await self._opened(problem)
        try:
            return await self._all(episode, plan)
        finally:
            await episode.close()

    async def _all(self, episode: EpisodeSession, plan: Sequence[tuple[AgentTurn, int]]) -> list[ToolResult]:
        """The results of turns up to the first end."""
        results: list[ToolResult] = []
        for turn in plan:
            if results and results[-1].end is not None:
                break
            results.append(await self._step(episode, turn))
        return results

    async def _step(self, episode: EpisodeSession, turn: tuple[AgentTurn, int]) -> ToolResult:
        move, seed = turn
        session = EpisodeSession(episode.episode, move.tool)
        arguments = move.text if move.tool == TURN else move.arguments
        result = made_safe(await session.step(arguments, seed, _replied), max_bytes=MAX_BYTES)
        self.num_steps += 1
        self.num_digests += STATE_DIGEST in result.metadata
        if result.status in ("crashed", "timeout"):
            raise AssertionError(f"{_said(move)} ended with status {result.status!r}: {result.text!r:.200}")
        return result


RULES: Final[Mapping[str, Callable[[EnvironmentCheck], Coroutine[Any, Any, None]]]] = {
    "turns are answered": EnvironmentCheck.plays,
    "a replay gives the same": EnvironmentCheck.repeats,
    "a fork and its trunk are apart": EnvironmentCheck.divides,
    "episodes share nothing": EnvironmentCheck.keeps_apart,
    "no text holds a secret": EnvironmentCheck.tells_no_secret,
}


async def _replied(prompt: str) -> Reply:
    """What stands for the model of an environment that asks one: the same reply to the same prompt."""
    return Reply(f"reply {sha256(prompt.encode('utf-8', 'replace')).hexdigest()[:8]}")


def _compare(found: Sequence[ToolResult], wanted: Sequence[ToolResult], what: str) -> None:
    """Raise `AssertionError` at the first step that differs from that of a fresh episode."""
    for number, (one, other) in enumerate(zip(found, wanted, strict=False)):
        for name, left, right in (
            ("text", one.text, other.text),
            ("status", one.status, other.status),
            ("reward", one.reward, other.reward),
            ("end", one.end, other.end),
            ("digest", one.metadata.get(STATE_DIGEST), other.metadata.get(STATE_DIGEST)),
        ):
            if left != right:
                raise AssertionError(
                    f"step {number} of {what} has the {name} {left!r:.120}, and a fresh episode that does the same has "
                    f"{right!r:.120}: the state is shared, or draws from something else than the step's seed"
                )
    if len(found) != len(wanted):
        raise AssertionError(f"{what} made {len(found)} steps, and a fresh episode {len(wanted)}")


def _examples(environment: Environment, problem: Problem) -> list[AgentTurn]:
    """Turns to try: the environment's own, or one for each function and for words of the question."""
    if isinstance(environment, HasExamples):
        return list(environment.examples(problem))
    words = [AgentTurn(text=word) for word in re.findall(r"\w+", problem.question)[-24:]]
    calls = [AgentTurn(tool=schema["name"], arguments=_arguments(schema)) for schema in environment.schemas]
    return [*calls, *(words if environment.takes == "turns" else [])] or [AgentTurn(text="hello")]


def _arguments(schema: Mapping[str, Any]) -> str:
    """Arguments of the right types for a function."""
    values = {"string": "a", "integer": 1, "number": 1.5, "boolean": True, "array": [], "object": {}}
    parameters = schema.get("parameters", {})
    wanted = parameters.get("required", [])
    types: dict[str, str] = {name: str(each.get("type")) for name, each in parameters.get("properties", {}).items()}
    return json.dumps({name: values.get(types.get(name, ""), "a") for name in wanted})


def _said(turn: AgentTurn) -> str:
    return f"the turn {turn.text!r:.80}" if turn.tool == TURN else f"the call {turn.tool} {turn.arguments!r:.80}"
