"""Tool: something a model may call, with a session a branch.

A hang or a crash of a tool is a result too: text for the model, a status for the metrics. `branching` says what may be
done when a path forks: `share` one session (stateless), `fork` it, `replay` its calls in a new one with their results
compared, or `refuse`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

from ramify.core.problem import Problem
from ramify.core.segment import ToolStatus

Branching = Literal["share", "fork", "replay", "refuse"]


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
class Isolated(Protocol):
    """A tool that runs foreign code, and says behind which walls."""

    @property
    def isolation(self) -> str:
        """`strict`, `process` or `none`; kept with the run."""
        ...


def text_schema(name: str, description: str = "", *, parameter: str = "input") -> Mapping[str, Any]:
    """The schema of a tool that takes one text."""
    parameters = {"type": "object", "properties": {parameter: {"type": "string"}}, "required": [parameter]}
    return {"name": name, "description": description, "parameters": parameters}


def schema_of(tool: Tool) -> Mapping[str, Any]:
    """What `tool` says it takes; one that says nothing takes one text."""
    return tool.schema if isinstance(tool, Described) else text_schema(tool.name)
