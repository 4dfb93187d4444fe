"""The environment `hops`: find facts in a library of a made-up world, where every search costs.

It is the task `hops` with a state: how many searches are left, and what was asked. A search costs a little; the right
answer earns 1. After the last search the library closes. The model that is shipped can act in it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any, ClassVar, Final

from ramify.core.branch import Branch
from ramify.core.environment import AgentTurn, Noise, Observation, RewardRule, Takes
from ramify.core.errors import ConfigError
from ramify.core.format import Format
from ramify.core.judge import Verdict
from ramify.core.problem import Problem
from ramify.core.tool import STATEFUL, Branching, ToolSession
from ramify.judges.exact import Exact
from ramify.tasks.hops import FORMAT, MAX_HOPS, Hops, search_tool
from ramify.tasks.hops_world import world

JUDGE: Final = Exact(FORMAT)


@dataclass(frozen=True, kw_only=True)
class HopsLibrary:
    """Questions of one to three hops, and a library that counts the searches."""

    num_hops: int = MAX_HOPS
    """Hops of a question, 1 to 3."""
    max_searches: int = 6
    """Searches until the library closes."""
    cost: float = 0.02
    """What each search takes off the reward."""
    name: ClassVar[str] = "hops"
    takes: ClassVar[Takes] = "calls"
    branching: ClassVar[Branching] = "fork"
    noise: ClassVar[Noise] = "none"
    reward: ClassVar[RewardRule] = "sum"
    needs_secret: ClassVar[bool] = True
    format: ClassVar[Format] = FORMAT

    def __post_init__(self) -> None:
        if self.max_searches < 1:
            raise ConfigError(f"max_searches = {self.max_searches!r}: at least 1 search is allowed")
        if self.cost < 0:
            raise ConfigError(f"cost = {self.cost!r}: it is at least 0")

    @property
    def schemas(self) -> Sequence[Mapping[str, Any]]:
        return (search_tool().schema,)

    def problems(self, split: str, num_problems: int, seed: int) -> Sequence[Problem]:
        """Those of the task `hops`."""
        return Hops(num_hops=self.num_hops).problems(split, num_problems, seed)

    def examples(self, problem: Problem) -> Sequence[AgentTurn]:
        """Searches for people of the problem's world."""
        people = world(str(problem.public["world"])).people
        return [AgentTurn(tool="search", arguments=person) for person in people[:8]]

    async def open(self, problem: Problem, seed: int) -> "LibraryEpisode":
        return LibraryEpisode(self, await search_tool().open(problem))


@dataclass(slots=True)
class LibraryEpisode:
    """The library after some searches."""

    library: HopsLibrary
    index: ToolSession
    asked: tuple[str, ...] = ()

    async def step(self, turn: AgentTurn, seed: int) -> Observation:
        found = await self.index.call(turn.arguments)
        if found.status not in STATEFUL:
            return found
        self.asked = (*self.asked, turn.arguments)
        is_last = len(self.asked) >= self.library.max_searches
        return replace(
            found,
            reward=-self.library.cost,
            end="truncated" if is_last else None,
            parts={"searches": -self.library.cost},
        )

    async def fork(self) -> "LibraryEpisode":
        return replace(self)

    def digest(self) -> str | None:
        return sha256("\0".join(self.asked).encode("utf-8", "replace")).hexdigest()

    async def score(self, branch: Branch, problem: Problem) -> Verdict | None:
        """1 for the right answer, else 0."""
        (verdict,) = await JUDGE.judge([branch], problem)
        return Verdict(verdict.value, {"correct": verdict.value or 0.0})

    async def close(self) -> None:
        """The index belongs to the world."""
