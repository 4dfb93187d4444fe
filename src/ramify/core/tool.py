"""Tool: something a model may call, with a session a branch.

A hang or a crash of a tool is a result too: text for the model, a status for the metrics. `branching` says what may be
done when a path forks: `share` one session (stateless), `fork` it, `replay` its calls in a new one with their results
compared, or `refuse`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol, runtime_checkable

from ramify.core.problem import Problem
from ramify.core.segment import ToolStatus

Branching = Literal["share", "fork", "replay", "refuse"]
STATEFUL: Final[frozenset[ToolStatus]] = frozenset({"ok", "empty", "error"})
"""Statuses after which a tool's state is that behind the call; after the others it is that before it."""


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What a call gave: text for the model, and structured data that never enters the ids."""

    text: str
    status: ToolStatus = "ok"
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])
    attachments: tuple[str, ...] = ()


class ToolSession(Protocol):
    """The state of one tool on one branch."""

    async def call(self, arguments: str) -> ToolResult:
        """Carry out one call. What the model did wrong is a result of status `error`; raise for other faults."""
        ...

    async def fork(self) -> "ToolSession":
        """A session with the same state that lives on by itself. Only for tools whose branching is `fork`."""
        ...

    async def close(self) -> None: ...


class Tool(Protocol):
    """Opens sessions. `name` is what a format's action names it by."""

    @property
    def name(self) -> str: ...

    @property
    def branching(self) -> Branching: ...

    async def open(self, problem: Problem) -> ToolSession:
        """A session in its first state, for the branch of a problem (without its secret)."""
        ...


@runtime_checkable
class Described(Protocol):
    """A tool that says what it takes, for formats that show it to the model as a function."""

    @property
    def schema(self) -> Mapping[str, Any]:
        """`name`, `description` and `parameters`, a JSON schema of the arguments (OpenAI's function)."""
        ...


@runtime_checkable
class ToolSet(Protocol):
    """Several tools of one source, such as a server's."""

    @property
    def tools(self) -> Sequence[Tool]: ...


@runtime_checkable
class Listing(Protocol):
    """A set of tools that somebody else lists, such as a server."""

    def recorded(self) -> Mapping[str, Any]:
        """Options that make the same tools again with nobody asked; they are kept with the run. Asks, unless it was
        made by such options."""
        ...


@runtime_checkable
class ChecksArguments(Protocol):
    """A tool that can tell before a call whether its arguments can be meant; one that cannot is never made."""

    def fault(self, arguments: str) -> str | None:
        """What is wrong with the arguments, what came and what is allowed, for the model to read; None = nothing."""
        ...


@runtime_checkable
class Joint(Protocol):
    """A tool that acts on one state together with others, such as the tools of one browser: a branch has one session
    for all of them, opened by whichever is called first, and a replay repeats the calls of all."""

    @property
    def state(self) -> str:
        """What the state is called. All tools of one state branch alike."""
        ...

    def on(self, session: ToolSession) -> ToolSession:
        """A session of the state, opened by any tool of it, as this tool calls it."""
        ...


@runtime_checkable
class Lasting(Protocol):
    """A tool that holds something from its first session to the end of a run, such as a connection."""

    async def let_go(self) -> None:
        """Let go of it and wait until it is gone. Harmless when repeated; a session opened later takes hold anew."""
        ...


@runtime_checkable
class Isolated(Protocol):
    """A tool that runs foreign code, and says behind which walls."""

    @property
    def isolation(self) -> str:
        """`strict`, `process` or `none`; kept with the run."""
        ...


@runtime_checkable
class Sandboxed(Isolated, Protocol):
    """An isolated tool whose walls this machine has to give; it is made, and its saved runs are read, without them."""

    @property
    def timeout_s(self) -> float:
        """Of a call, which then leaves the state before it; below the deadline of all tools."""
        ...

    async def try_walls(self) -> None:
        """Try every wall; asked before a run grows anything. Raises `ToolError` with the one that is missing and what
        supplies it, `ConfigError` for an option that this machine makes wrong."""
        ...


def state_of(tool: Tool) -> str:
    """What holds the state that `tool` acts on: itself, unless it says otherwise."""
    return tool.state if isinstance(tool, Joint) else tool.name


def called_by(tool: Tool, session: ToolSession) -> ToolSession:
    """A session of the tool's state, as the tool calls it."""
    return tool.on(session) if isinstance(tool, Joint) else session


def text_schema(name: str, description: str = "", *, parameter: str = "input") -> Mapping[str, Any]:
    """The schema of a tool that takes one text."""
    parameters = {"type": "object", "properties": {parameter: {"type": "string"}}, "required": [parameter]}
    return {"name": name, "description": description, "parameters": parameters}


def schema_of(tool: Tool) -> Mapping[str, Any]:
    """What `tool` says it takes; one that says nothing takes one text."""
    return tool.schema if isinstance(tool, Described) else text_schema(tool.name)
