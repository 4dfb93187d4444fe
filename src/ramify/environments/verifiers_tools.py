# pyright: reportMissingImports=false
"""Verifiers tools: the toolsets of a verifiers taskset, called in this process.

In verifiers a toolset is a server in a process of its own. Around each call it gets the rollout's State as JSON, puts
it into the ContextVar that `Toolset.state` reads, and sends it back if the call has changed it and has not raised. A
call here does the same without a server. Without both steps every call would see an empty State and lose its changes.
Source: verifiers 0.4.0, verifiers/v1/mcp/server.py (`_call_state`, `_with_state`, private: the version is pinned).
"""

from collections.abc import Iterable, Mapping, Sequence
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from ramify.core.environment import Observation
from ramify.core.errors import ConfigError
from ramify.edge.daemon_threads import DaemonThreads
from ramify.edge.user_calls import returned
from ramify.tools.arguments import read_arguments

THREADS: Final = DaemonThreads(512)
FRAMEWORK: Final = frozenset({"_state_cls", "_state_adapter", "_inert_state", "_state_client", "_exit_stack"})
"""Attributes of every toolset, which are no state of the rollout."""


@dataclass(frozen=True, slots=True)
class ToolsetFunction:
    """One function of a toolset."""

    name: str
    """As verifiers names it to the model: with the name of its server before it."""
    toolset: int
    """Index of its toolset."""
    method: str
    tool: Any
    """The `Tool` of the MCP library, which reads arguments and writes results. Its function is never called."""

    @property
    def schema(self) -> Mapping[str, Any]:
        """OpenAI's function format."""
        return {"name": self.name, "description": self.tool.description, "parameters": self.tool.parameters}

    def read(self, arguments: str) -> tuple[Mapping[str, Any] | None, str]:
        """The arguments in the text of a call; or None, and what is wrong with them."""
        try:
            return read_arguments(arguments, self.tool.parameters), ""
        except ValueError as error:
            return None, str(error)


def functions_of(toolsets: Iterable[Any]) -> Mapping[str, ToolsetFunction]:
    """Name -> function, for all `toolsets` in order. Raises `ConfigError` for a toolset that needs its server, and for
    two functions with the same name."""
    from mcp.server.mcpserver.tools.base import Tool
    from verifiers.v1.utils.decorators import discover_decorated

    found: dict[str, ToolsetFunction] = {}
    for index, toolset in enumerate(toolsets):
        _check(toolset)
        for method in discover_decorated(toolset, "tool"):
            own = getattr(method, "tool_name", None) or method.__name__
            name = f"{toolset.server_name}_{own}" if toolset.server_name else own
            if name in found:
                raise ConfigError(f"two tools of the taskset are called {name!r}; set TOOL_PREFIX of a toolset")
            tool = Tool.from_function(method, name=own, description=(method.__doc__ or "").strip() or None)
            if tool.context_kwarg or tool.resolved_params:
                raise ConfigError(f"the tool {name!r} asks for the context of an MCP server, and there is none here")
            found[name] = ToolsetFunction(name, index, method.__name__, tool)
    return found


def _check(toolset: Any) -> None:
    from verifiers.v1 import Toolset

    name, url = type(toolset).__name__, getattr(toolset.config, "url", None)
    if url is not None:
        raise ConfigError(f"the toolset {name} is a server at {url!r}; only a toolset in this process can be copied")
    if type(toolset).register is not Toolset.register:
        raise ConfigError(f"the toolset {name} registers its tools by itself (register); only @vf.tool is supported")


async def called(
    function: ToolsetFunction, toolset: Any, state: Any, given: Mapping[str, Any]
) -> tuple[Observation, Any]:
    """Call a function with these arguments. Returns the observation and the State after the call, which is
    `state` itself if nothing has changed. Mutates `toolset`. A function that raises is an observation of status
    `error`, in the words of the MCP library, and leaves the State as it was."""
    from verifiers.v1 import State
    from verifiers.v1.harnesses.utils.mcp import mcp_content_to_chat_content
    from verifiers.v1.mcp.server import _call_state

    adapter, is_synced = toolset._state_adapter, toolset._state_cls is not State
    seen = adapter.validate_json(state.model_dump_json()) if is_synced else State()
    token = _call_state.set(seen)
    try:
        before = adapter.dump_json(seen)
        result = await _returned(function, getattr(toolset, function.method), given)
        after = adapter.dump_json(seen)
        if is_synced and after != before:
            state = type(state).model_validate_json(after)
        said = _text(mcp_content_to_chat_content(result.content))
        return Observation(said, status="error" if result.is_error else "ok"), state
    except Exception as error:  # noqa: BLE001 - boundary to the author's code, as in the MCP library
        return Observation(f"Error executing tool {function.tool.name}: {error}", status="error"), state
    finally:
        _call_state.reset(token)


async def _returned(function: ToolsetFunction, method: Any, given: Mapping[str, Any]) -> Any:
    """The result of a call: a coroutine function runs in the loop, any other in a thread, in this context."""
    metadata = function.tool.fn_metadata
    call = partial(method, **metadata.validate_arguments(dict(given)))
    if function.tool.is_async:
        return metadata.convert_result(await call())
    return metadata.convert_result(await returned(partial(copy_context().run, call), THREADS))


def _text(content: str | Sequence[Mapping[str, Any]]) -> str:
    """The words of a result; a picture is only mentioned."""
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] if part["type"] == "text" else f"[{part['type']}]" for part in content)


def held_by(toolset: Any) -> Mapping[str, Any]:
    """What a toolset holds besides the State, for a digest."""
    return {name: value for name, value in vars(toolset).items() if name not in FRAMEWORK}
