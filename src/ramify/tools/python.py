"""Python: the model's code, run in a sandbox that keeps its state between calls and can be forked.

    from ramify.tools.python import open_session

    async with open_session() as session:
        answer = await session.run("x = 6 * 7\\nx", timeout_s=5)
        assert answer.ok and answer.text == "42\\n"
        fork = await session.fork()          # the same state, from here on by itself
        await fork.run("del x")
        assert (await session.run("x")).ok

The text holds what was printed on both streams, the value of a last expression, and tracebacks (`ok` is False). The
text of a step that times out or crashes ends in `[timeout]` or `[crashed]`, and the session stays in the state before
that step. A lost or evicted state is replayed in a new sandbox; if a step then shows another output,
`ToolError("replay_diverged")` is raised.

Walls are kernel barriers around the code (`docs/guides/sandbox.md`). `strict` uses all of them and tests them once per
process; it raises a `ToolError` that names the wall this machine lacks. `process` and `none` apply only if they are
named explicitly. The machine is checked when walls are tried and when sessions open, never when the tool is made, so a
saved run can be read anywhere. Do not trust a text or `ok` of this tool as proof: code in a session can forge its own.
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
    """Opens sandboxed sessions. Raises `ConfigError` for options that are invalid on every machine."""

    name: str = "python"
    """Name that the model calls."""
    isolation: Isolation = "strict"
    """Walls around the code. `strict`: all of them, so that it sees no file, network or process of this machine.
    `process`: the same without namespaces, so that it sees what runs here. `none`: timeouts and limits only."""
    may_be_root_without_walls: bool = False
    """Must also be set to use `none` as root, because the model's code then controls the whole machine."""
    timeout_s: float = 30.0
    """Timeout of a call; after it the session keeps the state before the call (volcengine/verl, sandbox fusion: 30 s).
    Set it below `tools.deadline_s`."""
    memory_bytes: int = 1 << 30
    """Memory that one call may add, including everything it starts."""
    max_output_bytes: int = 1 << 20
    """Maximum size of a call's text; the toolbox keeps less."""
    preload: tuple[str, ...] = ("numpy",)
    """Modules that every session has already imported. A session can import no other packages except their
    requirements."""
    is_stateful: bool = True
    """Whether calls see the state that earlier calls left. Models are trained both ways."""
    siblings: Siblings = "together"
    """Branches share a sandbox while they do not run at once, and no file of it. `apart` gives every branch its own
    sandbox, by replay."""
    max_nodes: int = 64
    """States kept in one sandbox. Beyond this number the least recently used are dropped, and replayed when needed."""
    max_sandboxes: int = 128
    """Sandboxes kept at once; each tree has at least one. Beyond this number the least recently used are ended, and
    replayed when needed."""
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
        """`fork`; with `siblings = "apart"` it is `replay`: the session moves on to one branch and is replayed for its
        siblings."""
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
        """Try every wall, once per process. Raises `ToolError` that names the wall this machine lacks and the way to
        get it. Raises `ConfigError` if a module to preload is missing, and for `none` as root."""
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
        """Its sandboxes. The machine is checked here for the first time."""
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
        """Check what needs no trial; raises as `try_walls` does."""
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
    """A session of `Python(**options)`, closed at the end of the block. Whoever makes a fork closes it."""
    session = await Python(**options).open(Problem("session", "a session outside any tree"))
    try:
        yield session
    finally:
        await session.close()


async def check(isolation: Isolation = "strict") -> None:
    """Try every wall of a kind. Raises `ToolError` that names the wall this machine lacks."""
    await Python(isolation=isolation, preload=()).try_walls()
