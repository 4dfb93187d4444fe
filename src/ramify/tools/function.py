"""Functions as tools: `@tool` makes a tool from a typed function, `FunctionTool` from a function of one text.

A coroutine function runs in the event loop. Any other function runs in a thread, so a slow one delays nobody; if it
returns an awaitable, that is awaited in the loop. The model reads what the function raises: `ValueError: …` with status
`error`. A thread cannot be killed: when a call hangs, its thread is abandoned at the timeout. It is a daemon thread, so
it does not keep the process alive, but it takes one of `max_threads` places until it returns.
"""

import asyncio
import inspect
import json
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Literal, TypeVar, overload

import msgspec

from ramify.core.errors import ConfigError
from ramify.core.problem import Problem
from ramify.core.tool import ToolResult, text_schema
from ramify.edge.daemon_threads import DaemonThreads
from ramify.edge.error_text import error_text
from ramify.edge.user_calls import ThreadWatch, returned
from ramify.tools.output import valid
from ramify.tools.signature import Signature

T = TypeVar("T")
Function = Callable[[str], "str | ToolResult"] | Callable[[str], "Coroutine[Any, Any, str | ToolResult]"]
FunctionBranching = Literal["share", "replay", "refuse"]
"""share: a call leaves no state behind. replay: the state follows from the calls of a branch. refuse: neither. The
state of a function cannot be copied."""


class FunctionTool:
    """`function` takes a call's arguments as text and returns text or a `ToolResult`. The tool is its own session.

    With a `signature`, `function` takes the keyword arguments that the signature reads, and may return any JSON data:
    see `tool`.
    """

    def __init__(
        self,
        function: Function | Callable[..., Any],
        *,
        name: str | None = None,
        signature: Signature | None = None,
        branching: FunctionBranching = "share",
        deadline_s: float | None = None,
        max_threads: int = 64,
    ) -> None:
        """`name` defaults to the function's own. A model sees the docstring and the name of the parameter.

        `deadline_s` is the timeout of each call; None = the timeout of all tools. Raises `ConfigError`.
        """
        self.name = name or getattr(function, "__name__", "")
        if not self.name.isidentifier():
            raise ConfigError(f"a tool's name must be an identifier, so that a format can call it; got {self.name!r}")
        if branching not in ("share", "replay", "refuse"):
            raise ConfigError(f"tool {self.name!r}: branching = {branching!r}; allowed are 'share', 'replay', 'refuse'")
        if (deadline_s is not None and not deadline_s > 0) or max_threads < 1:
            raise ConfigError(f"tool {self.name!r}: {deadline_s=!r}, {max_threads=!r}: both must be above 0")
        self.branching: FunctionBranching = branching
        self.schema: Mapping[str, Any] = (
            text_schema(self.name, inspect.getdoc(function) or "", parameter=_parameter(function))
            if signature is None
            else {"name": self.name, "description": signature.description, "parameters": signature.parameters}
        )
        self._function: Callable[..., Any] = function
        self._signature = signature
        self._deadline_s = deadline_s
        self._max_threads = max_threads
        self._threads = DaemonThreads(max_threads)

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        """Call the function itself: a decorated function still works as a function."""
        return self._function(*args, **keywords)

    def configured(
        self,
        *,
        name: str | None = None,
        branching: FunctionBranching | None = None,
        deadline_s: float | None = None,
        max_threads: int | None = None,
    ) -> "FunctionTool":
        """The same function with other settings; None = unchanged. Raises `ConfigError`."""
        return FunctionTool(
            self._function,
            name=name or self.name,
            signature=self._signature,
            branching=branching or self.branching,
            deadline_s=self._deadline_s if deadline_s is None else deadline_s,
            max_threads=self._max_threads if max_threads is None else max_threads,
        )

    def fault(self, arguments: str) -> str | None:
        """What is wrong with the arguments; None = nothing."""
        try:
            self._read(arguments)
        except ValueError as error:
            return str(error)
        return None

    async def open(self, problem: Problem) -> "FunctionTool":
        return self

    async def call(self, arguments: str) -> ToolResult:
        """What the function returns. What it raises becomes an error that the model can read."""
        limit = asyncio.timeout(self._deadline_s)
        watch = ThreadWatch()
        try:
            async with limit:
                said = await returned(self._read(arguments), self._threads, watch)
        except (asyncio.CancelledError, GeneratorExit, KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # noqa: BLE001 - boundary to a user's code: its exceptions are for the model
            is_late = isinstance(error, TimeoutError) and limit.expired()
            return ToolResult("", "timeout") if is_late else ToolResult(error_text(error), "error", took_s=watch.took_s)
        result = said if self._signature is None and not isinstance(said, str) else _result(said)
        is_timed = isinstance(result, ToolResult) and result.took_s is None
        return replace(result, took_s=watch.took_s) if is_timed else result

    async def fork(self) -> "FunctionTool":
        return self

    async def close(self) -> None: ...

    def _read(self, arguments: str) -> partial[Any]:
        """The call to make. Raises `ValueError` if the arguments do not fit."""
        if self._signature is None:
            return partial(self._function, arguments)
        return partial(self._function, **self._signature.read(arguments))


@overload
def tool(function: Callable[..., Any], /) -> FunctionTool: ...


@overload
def tool(
    *,
    name: str | None = None,
    branching: FunctionBranching = "share",
    deadline_s: float | None = None,
    max_threads: int = 64,
) -> Callable[[Callable[..., Any]], FunctionTool]: ...


def tool(function: Callable[..., Any] | None = None, /, **settings: Any) -> Any:
    """Make a tool from a typed function: `@tool`, or `@tool(name=…, branching=…, deadline_s=…)`.

    A model sees the docstring and the parameters, typed by their hints. If the arguments do not fit, the function is
    not called and the model reads what is wrong. The function returns text, a `ToolResult`, or data, which the model
    sees as JSON. Raises `ConfigError` for a parameter without a hint, or with a hint that JSON has no values for.
    """
    if function is None:
        return partial(_made, **settings)
    return _made(function, **settings)


def _made(function: Callable[..., Any], *, name: str | None = None, **settings: Any) -> FunctionTool:
    if inspect.isclass(function) or not callable(function):
        raise ConfigError(f"@tool makes a tool of a function, not of {function!r}")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigError(f"@tool cannot make a tool of the generator {function!r}: return a list, or one text")
    called = name or getattr(function, "__name__", "")
    return FunctionTool(function, name=called, signature=Signature.of(function, name=called), **settings)


def _result(said: Any) -> ToolResult:
    """The result for what a function returned: text, a `ToolResult`, or data as JSON."""
    if said is None or isinstance(said, str | bytes):
        return ToolResult(valid(said or ""))
    if isinstance(said, ToolResult):
        return said
    try:
        return ToolResult(json.dumps(msgspec.to_builtins(said), ensure_ascii=False, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        return ToolResult(f"it returned {type(said).__name__}, which is no text and no JSON data: {error}", "crashed")


def _parameter(function: Callable[..., Any]) -> str:
    """Name of the first parameter; `input` if there is none or a C function does not tell."""
    try:
        return next(iter(inspect.signature(function).parameters), "input")
    except ValueError:
        return "input"
