"""FunctionTool: a plain Python function as a tool without state.

A coroutine function runs in the loop, any other in a thread, so that a slow one delays nobody. What it raises is the
model's to read: `ValueError: …` with status `error`. A thread cannot be killed: one that hangs is left behind at the
deadline, as a daemon that does not keep the process alive, and takes one of `max_threads` places until it returns.
"""

import asyncio
import inspect
import queue
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor, Future
from functools import partial
from typing import Any, Final, TypeVar

from ramify.core.errors import ConfigError
from ramify.core.problem import Problem
from ramify.core.tool import Branching, ToolResult, text_schema
from ramify.tools.output import told

T = TypeVar("T")
Function = Callable[[str], "str | ToolResult"] | Callable[[str], "Coroutine[Any, Any, str | ToolResult]"]


class FunctionTool:
    """`function` takes a call's arguments as text and returns text or a `ToolResult`. The tool is its own session."""

    branching: Branching = "share"

    def __init__(self, function: Function, *, name: str | None = None, max_threads: int = 64) -> None:
        """`name` defaults to the function's own; its docstring and its parameter's name are what a model is shown."""
        self.name = name or getattr(function, "__name__", "")
        if not self.name.isidentifier():
            raise ConfigError(f"a tool needs a name that a format can call it by, got {self.name!r}")
        self.schema = text_schema(self.name, inspect.getdoc(function) or "", parameter=_parameter(function))
        self._function = function
        self._threads = DaemonThreads(max_threads)

    async def open(self, problem: Problem) -> "FunctionTool":
        return self

    async def call(self, arguments: str) -> ToolResult:
        """What the function returns; what it raises, as an error to read."""
        try:
            if inspect.iscoroutinefunction(self._function):
                said = await self._function(arguments)
            else:
                loop = asyncio.get_running_loop()
                said = await loop.run_in_executor(self._threads, partial(_contained, self._function, arguments))
        except Exception as error:  # noqa: BLE001 - boundary to a user's code: its exceptions are for the model
            return ToolResult(told(error), "error")
        return ToolResult(said) if isinstance(said, str) else said  # pyright: ignore[reportReturnType]

    async def fork(self) -> "FunctionTool":
        return self

    async def close(self) -> None: ...


def _parameter(function: Function) -> str:
    """Name of the first parameter; functions of C may not say."""
    try:
        return next(iter(inspect.signature(function).parameters), "input")
    except ValueError:
        return "input"


def _contained(function: Callable[[str], Any], arguments: str) -> Any:
    """`exit()` in a thread is no wish to end the process."""
    try:
        return function(arguments)
    except SystemExit as error:
        raise RuntimeError(f"exit({error.code!r})") from error


class DaemonThreads(Executor):
    """At most `max_threads` daemon threads, made when needed: unlike a pool's, they never keep the process alive."""

    def __init__(self, max_threads: int) -> None:
        self._max_threads: Final = max_threads
        self._jobs: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = queue.SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._num_threads = 0

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        future: Future[T] = Future()
        self._jobs.put((future, partial(fn, *args, **kwargs)))
        if not self._idle.acquire(blocking=False) and self._num_threads < self._max_threads:
            self._num_threads += 1
            threading.Thread(target=self._work, name="ramify-tool", daemon=True).start()
        return future

    def _work(self) -> None:
        while True:
            future, job = self._jobs.get()
            if future.set_running_or_notify_cancel():
                try:
                    result = job()
                except BaseException as error:  # noqa: BLE001 - the future carries whatever it is
                    future.set_exception(error)
                else:
                    future.set_result(result)
            self._idle.release()
