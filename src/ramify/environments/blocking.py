"""Blocking: worlds that are plain Python objects whose methods block. Each episode works in a thread of its own.

An adapter is a subclass of `BlockingEnvironment` that makes a `World`. A thread isolates nothing: a world that draws
from a global generator, changes the working directory or holds the interpreter belongs into a process
(`runs_in = "process"`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Final, Literal, Protocol, TypeVar

from ramify.core.branch import Branch
from ramify.core.environment import AgentTurn, Episode, Noise, Observation, RewardRule, Takes
from ramify.core.judge import Verdict
from ramify.core.problem import Problem
from ramify.core.tool import Branching
from ramify.edge.daemon_threads import DaemonThreads
from ramify.edge.user_calls import returned
from ramify.environments.processes import WorldProcesses, check_environment
from ramify.environments.world_process import stepped

T = TypeVar("T")
THREADS: Final = DaemonThreads(512)
"""Threads of all worlds; a world that hangs keeps one for good."""
MAX_PROCESSES: Final = 256
"""Half of the open files that systems commonly allow a process (1,024, two an episode)."""
RunsIn = Literal["thread", "process"]


class World(Protocol):
    """The state of one episode. Its methods may block; they are called one at a time, in any thread."""

    def step(self, turn: AgentTurn, seed: int) -> Observation:
        """Carry out one turn, as `Episode.step` says."""
        ...

    def copy(self) -> "World":
        """A copy that shares nothing with this one. Called only if `branching` is `fork` and the world runs in a
        thread; a process is copied as a whole."""
        ...

    def digest(self) -> str | None:
        """A hash of the state; None = unknown."""
        ...

    def score(self, said: str, problem: Problem) -> Verdict | None:
        """The score of a path that has ended here. `said`: the model's own words (`Branch.said`). None = this world
        scores only steps."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, kw_only=True)
class BlockingEnvironment:
    """An environment whose episodes are worlds. A subclass sets the class's attributes, and has `problems` and
    `world`."""

    name: ClassVar[str]
    takes: ClassVar[Takes] = "turns"
    noise: ClassVar[Noise] = "path"
    reward: ClassVar[RewardRule] = "sum"
    needs_secret: ClassVar[bool] = False
    branching: Branching = "fork"
    """What may happen where a path forks: `fork`, `replay` or `refuse`."""
    runs_in: RunsIn = "thread"
    """thread: quick, and isolates nothing. process: a process for each episode, which is copied by `fork` of the
    system; Linux only."""
    max_step_s: float = 300.0
    """Longest call of a world in a process, in seconds; its process is killed then."""
    max_memory_bytes: int = 4 << 30
    """Address space of a world in a process, beyond what it starts with."""
    max_file_bytes: int = 1 << 30
    """Largest file that a world in a process can write."""
    _processes: WorldProcesses = field(default_factory=WorldProcesses, init=False, repr=False, compare=False)

    @property
    def max_sessions(self) -> int | None:
        """Episodes that may wait for later forks: a process each, of about 3 MB and two open files; None = as many as a
        run allows."""
        return MAX_PROCESSES if self.runs_in == "process" else None

    @property
    def schemas(self) -> Sequence[Mapping[str, Any]]:
        return ()

    def problems(self, split: str, num_problems: int, seed: int) -> Sequence[Problem]:
        raise NotImplementedError

    def world(self, problem: Problem, seed: int) -> World:
        """The world of `problem` in its initial state. May block."""
        raise NotImplementedError

    def prepare(self) -> None:
        """Import what worlds need; called before the first world is made, in each process that makes worlds. Raises
        `ConfigError` for what is not installed."""

    def check_start(self) -> None:
        """Raises `ConfigError` for an environment that cannot open worlds here."""
        if self.runs_in == "process":
            check_environment(self)
        self.prepare()

    async def let_go(self) -> None:
        """End the processes of its worlds."""
        await self._processes.end()

    async def open(self, problem: Problem, seed: int) -> Episode:
        if self.runs_in == "process":
            return await self._processes.open(self, problem, seed)
        world = await _blocking(self.world, problem, seed)
        return BlockingEpisode(world, await _blocking(world.digest))


class BlockingEpisode:
    """A world as an episode. A thread does one call at a time; a call that is not waited for any more goes on, and its
    world is never used again."""

    def __init__(self, world: World, digest: str | None) -> None:
        self._world = world
        self._digest = digest

    async def step(self, turn: AgentTurn, seed: int) -> Observation:
        observed, self._digest = await _blocking(stepped, self._world, turn, seed)
        return observed

    async def fork(self) -> "BlockingEpisode":
        return BlockingEpisode(await _blocking(self._world.copy), self._digest)

    def digest(self) -> str | None:
        return self._digest

    async def score(self, branch: Branch, problem: Problem) -> Verdict | None:
        return await _blocking(self._world.score, branch.said, problem)

    async def close(self) -> None:
        await _blocking(self._world.close)


async def _blocking(call: Callable[..., T], *arguments: Any) -> T:
    return await returned(partial(call, *arguments), THREADS)
