"""Tool: something that a model may call, with one session per branch.

If a tool hangs or crashes, that is a result too: text for the model, and a status for the metrics. `branching` says
what may happen when a path forks: `share` one session (stateless), `fork` the session, `replay` its calls in a new
session and compare the results, or `refuse`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol, runtime_checkable

from ramify.core.problem import Problem
from ramify.core.quick_init import quick_init
from ramify.core.segment import PathEnd, ToolStatus

Branching = Literal["share", "fork", "replay", "refuse"]
STATEFUL: Final[frozenset[ToolStatus]] = frozenset({"ok", "empty", "error"})
"""After these statuses, the call has changed the tool's state. After the others, the state is that before the call."""
LOST: Final = "sandbox_lost"
"""Reason of a `ToolError` that is not caused by the call: a retry may get a sandbox that lasts."""
STATE_DIGEST: Final = "state_sha256"
"""Key of a result's metadata: a digest of the state that the call left. A repeated call must leave the same."""


@quick_init
@dataclass(frozen=True, slots=True)
class ToolResult:
    """What a call returned: text for the model, and structured data that never enters the ids."""

    text: str
    status: ToolStatus = "ok"
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])
    attachments: tuple[str, ...] = ()
    reward: float | None = None
    """Reward of the step; None = none was given, which is not 0."""
    end: PathEnd | None = None
    """`done`: the world has ended the path. `truncated`: it has reached a limit of its own. None = the path goes on."""
    parts: Mapping[str, float] = field(default_factory=dict[str, float])
    """Named parts of the reward, for people."""
    took_s: float | None = field(default=None, compare=False)
    """Seconds the tool worked, by its own clock; None = the runner measures its coroutine, which an event loop that is
    busy with something else makes longer. Tools that are coroutines, and MCP servers behind a URL, have none."""


class ToolSession(Protocol):
    """The state of one tool on one branch."""

    async def call(self, arguments: str) -> ToolResult:
        """Carry out one call. A mistake of the model is a result of status `error`; other faults are raised."""
        ...

    async def fork(self) -> "ToolSession":
        """A copy of the session with the same state, independent of this one. Only for tools whose branching is
        `fork`."""
        ...

    async def close(self) -> None: ...


class Tool(Protocol):
    """Opens sessions. A format's action names the tool by `name`."""

    @property
    def name(self) -> str: ...

    @property
    def branching(self) -> Branching: ...

    async def open(self, problem: Problem) -> ToolSession:
        """A session in its initial state, for a branch of `problem` (without its secret)."""
        ...


@runtime_checkable
class Described(Protocol):
    """A tool that describes its arguments, for formats that show it to the model as a function."""

    @property
    def schema(self) -> Mapping[str, Any]:
        """`name`, `description` and `parameters`, a JSON schema of the arguments (OpenAI's function format)."""
        ...


@runtime_checkable
class ToolSet(Protocol):
    """Several tools from one source, such as a server."""

    @property
    def tools(self) -> Sequence[Tool]: ...


@runtime_checkable
class Listing(Protocol):
    """A set of tools listed by someone else, such as a server."""

    def recorded(self) -> Mapping[str, Any]:
        """Options that make the same tools again without asking the source. They are kept with the run. This call asks
        the source, unless the set was made from such options."""
        ...


@runtime_checkable
class ChecksArguments(Protocol):
    """A tool that can tell before a call whether its arguments are valid. A call with invalid arguments is never
    made."""

    def fault(self, arguments: str) -> str | None:
        """What is wrong with the arguments, what was received and what is allowed, as text for the model; None =
        nothing."""
        ...


@runtime_checkable
class Joint(Protocol):
    """A tool that shares one state with other tools, such as the tools of one browser. A branch has one session for all
    of them; whichever is called first opens it. A replay repeats the calls of all of them."""

    @property
    def state(self) -> str:
        """Name of the state. All tools of one state must have the same `branching`."""
        ...

    def on(self, session: ToolSession) -> ToolSession:
        """Adapt a session of the state to this tool. Any tool of the state may have opened it."""
        ...


@runtime_checkable
class JoinsState(Protocol):
    """A tool or a set of tools that may act on the state of another tool of the run, which its options name."""

    def joined(self, tools: "Mapping[str, Tool | ToolSet]") -> "Tool | ToolSet":
        """The same, acting on the state of that tool. `tools`: the entries of `tools.use`. Raises `ConfigError`."""
        ...


@runtime_checkable
class Lasting(Protocol):
    """A tool that holds something, such as a connection, from its first session to the end of a run."""

    async def let_go(self) -> None:
        """Release it and wait until it is gone. May be called repeatedly; a session opened later acquires it again."""
        ...


@runtime_checkable
class ChecksStart(Protocol):
    """A tool that may not be used as it is configured, which only matters to a run that grows: a saved run is read with
    it all the same."""

    def check_start(self) -> None:
        """Called before a run grows anything. Raises `ConfigError` that says what to change."""
        ...


@runtime_checkable
class Isolated(Protocol):
    """A tool that runs foreign code and says how it is isolated."""

    @property
    def isolation(self) -> str:
        """`strict`, `process` or `none`; kept with the run."""
        ...


@runtime_checkable
class Sandboxed(Isolated, Protocol):
    """An isolated tool that needs isolation features of this machine. Without them, it can still be made and its saved
    runs can still be read."""

    @property
    def timeout_s(self) -> float:
        """Timeout of a call. A call that reaches it leaves the state as it was before. Shorter than the deadline of all
        tools."""
        ...

    async def try_walls(self) -> None:
        """Test every isolation feature; called before a run grows anything. Raises `ToolError` that names the missing
        feature and what supplies it, and `ConfigError` for an option that does not work on this machine."""
        ...


def state_of(tool: Tool) -> str:
    """Name of the state that `tool` acts on: its own name, unless it shares a state."""
    return tool.state if isinstance(tool, Joint) else tool.name


def called_by(tool: Tool, session: ToolSession) -> ToolSession:
    """A session of the tool's state, adapted to the tool."""
    return tool.on(session) if isinstance(tool, Joint) else session


def text_schema(name: str, description: str = "", *, parameter: str = "input") -> Mapping[str, Any]:
    """The schema of a tool that takes one text."""
    parameters = {"type": "object", "properties": {parameter: {"type": "string"}}, "required": [parameter]}
    return {"name": name, "description": description, "parameters": parameters}


def schema_of(tool: Tool) -> Mapping[str, Any]:
    """The schema of `tool`. A tool without one takes one text."""
    return tool.schema if isinstance(tool, Described) else text_schema(tool.name)
