"""Python: the model's code, run in a sandbox that keeps its state between calls and can be forked.

    from ramify.tools.python import open_session

    async with open_session() as session:
        answer = await session.run("x = 6 * 7\\nx", timeout_s=5)
        assert answer.ok and answer.text == "42\\n"
        fork = await session.fork()          # the same state, from here on by itself
        await fork.run("del x")
        assert (await session.run("x")).ok

Text is what was printed on both streams, the value of a last expression, and tracebacks (`ok` false). A step that hangs
or dies ends in `[timeout]` or `[crashed]`, and the session stays in the state before it. A state that is lost or
evicted is replayed in a new sandbox; where a step then shows something else, `ToolError("replay_diverged")` is raised.

Walls (`docs/sandbox.md`): `strict` all of them, tried once a process, or `ToolError` with the one this machine lacks;
`process` and `none` only where they are written down. The machine is looked at when walls are tried and sessions open,
never when the tool is made: a saved run is read anywhere. No text and no `ok` of a tool proves anything: code in a
session can forge its own.
"""

import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Literal

from ramify.core.errors import ConfigError, ToolError
from ramify.core.problem import Problem
from ramify.core.tool import Branching, text_schema
from ramify.sandbox.limits import SandboxLimits

if TYPE_CHECKING:
    from ramify.sandbox.pool import SandboxPool
    from ramify.sandbox.session import Session, SessionRules

Isolation = Literal["strict", "process", "none"]
ISOLATIONS: Final = ("strict", "process", "none")
Siblings = Literal["together", "apart"]
SIBLINGS: Final = ("together", "apart")
MAX_TIMEOUT_S: Final = 3600.0

DESCRIPTION: Final = (
    "Runs Python code and returns what it prints, the value of its last expression, or the traceback. {state} "
    "There is no network. A call may take {timeout_s:g} seconds."
)
KEPT: Final = "Variables, imports and files are kept between calls."
FRESH: Final = "Every call starts in a fresh interpreter."


@dataclass(frozen=True, kw_only=True)
class Python:
    """Opens sandboxed sessions. Raises `ConfigError` for options that make no sense anywhere."""

    name: str = "python"
    isolation: Isolation = "strict"
    may_be_root_without_walls: bool = False
    """`none` as root gives the machine away: it must be said twice."""
    timeout_s: float = 30.0
    """Of a call, which keeps the state before it (volcengine/verl, sandbox fusion: 30 s); below `tools.deadline_s`."""
    memory_bytes: int = 1 << 30
    """What one call with all it starts may add."""
    max_output_bytes: int = 1 << 20
    """Kept of a call's text; the toolbox keeps less."""
    preload: tuple[str, ...] = ("numpy",)
    """Modules every session has imported, and with what they require the only packages it can import."""
    is_stateful: bool = True
    """Whether calls see what earlier ones left: models are trained either way."""
    siblings: Siblings = "together"
    """`apart` gives every branch a sandbox of its own, by replay: not even /tmp is shared then."""
    max_nodes: int = 64
    """States kept in one sandbox; the least recently used beyond it are replayed when they are needed."""
    max_sandboxes: int = 128
    """Kept at once, one for each tree at least; the least recently used are ended, and replayed when needed."""
    num_spares: int = 1
    """Sandboxes kept warm while there are sessions."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "preload", tuple(self.preload))
        if not self.name.isidentifier():
            raise ConfigError(f"a tool's name must be an identifier, so that a format can call it; got {self.name!r}")
        for name, value, known in (("isolation", self.isolation, ISOLATIONS), ("siblings", self.siblings, SIBLINGS)):
            if value not in known:
                raise ConfigError(f"{name} = {value!r}: it is one of {', '.join(known)}")
        if not 0 < self.timeout_s <= MAX_TIMEOUT_S:
            raise ConfigError(f"timeout_s = {self.timeout_s!r}: above 0 and at most {MAX_TIMEOUT_S:g} seconds")
        if self.max_sandboxes < 1 or self.num_spares < 0:
            raise ConfigError(
                f"max_sandboxes = {self.max_sandboxes!r}, num_spares = {self.num_spares!r}: at least 1 and 0 are needed"
            )
        self._limits()

    @property
    def branching(self) -> Branching:
        """`fork`; a session that shares no sandbox with its siblings moves on instead, and is replayed for them."""
        return "fork" if self.siblings == "together" else "replay"

    @property
    def schema(self) -> Mapping[str, Any]:
        text = DESCRIPTION.format(state=KEPT if self.is_stateful else FRESH, timeout_s=self.timeout_s)
        return text_schema(self.name, text, parameter="code")

    async def open(self, problem: Problem) -> "Session":
        """A session without any step. Raises as `try_walls` does."""
        pool = self._pool
        from ramify.sandbox.session import Session

        return await Session.open(pool, self._rules)

    async def try_walls(self) -> None:
        """Try every wall, once a process. Raises `ToolError` with the one that this machine lacks and what supplies it,
        `ConfigError` for a module to preload that is not there, and for no walls as root."""
        pool = self._pool
        from ramify.sandbox.selftest import passed

        await passed(pool.config)

    @property
    def _rules(self) -> "SessionRules":
        from ramify.sandbox.session import SessionRules

        shares = self.siblings == "together"
        return SessionRules(timeout_s=self.timeout_s, is_stateful=self.is_stateful, shares_sandbox=shares)

    @cached_property
    def _pool(self) -> "SandboxPool":
        """Its sandboxes; this is where the machine is looked at first."""
        self._check_machine()
        from ramify.sandbox.pool import SandboxPool
        from ramify.sandbox.setup import SandboxConfig

        config = SandboxConfig(walls=self.isolation, limits=self._limits(), preload=self.preload)
        return SandboxPool(config, max_sandboxes=self.max_sandboxes, num_spares=self.num_spares)

    def _limits(self) -> SandboxLimits:
        return SandboxLimits(
            memory_bytes=self.memory_bytes, max_output_bytes=self.max_output_bytes, max_nodes=self.max_nodes
        )

    def _check_machine(self) -> None:
        """Raises as `try_walls` does, for what can be seen without trying."""
        if sys.platform != "linux":
            what = f"the tool python needs Linux for its sandbox, not {sys.platform}; run it in a Linux machine"
            raise ToolError("tool_gave_up", what)
        from ramify.sandbox.bubblewrap import found
        from ramify.sandbox.interpreter import interpreter
        from ramify.sandbox.setup import is_known_machine, machine

        if not is_known_machine():
            what = f"the tool python knows the system calls of x86_64 and aarch64, not of {machine()}"
            raise ToolError("tool_gave_up", what)
        if self.isolation == "none" and os.geteuid() == 0 and not self.may_be_root_without_walls:
            raise ConfigError(
                "isolation='none' as root lets the model's code do anything to this machine: run as another user, or "
                "write may_be_root_without_walls=true as well where the machine is a sandbox itself"
            )
        if self.isolation == "strict":
            found()
        interpreter(self.preload)


@asynccontextmanager
async def open_session(**options: Any) -> AsyncIterator["Session"]:
    """A session of `Python(**options)`, closed at the end of the block; forks are closed by who made them."""
    session = await Python(**options).open(Problem("session", "a session outside any tree"))
    try:
        yield session
    finally:
        await session.close()


async def check(isolation: Isolation = "strict") -> None:
    """Try every wall of a kind. Raises `ToolError` with the one that this machine lacks."""
    await Python(isolation=isolation, preload=()).try_walls()
