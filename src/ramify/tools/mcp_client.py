"""The one place that talks to MCP servers, by the official SDK (extra `mcp`).

A client belongs to the task that opened it, so a `Connection` is a task of its own: it opens, waits until it is told to
close or its server has ended, and closes, in `CLOSE_S` at most; calls are made in the callers' tasks, as many at once
as they like. The session of a run that leaves one call after another unanswered gives way to a new one.
"""

import asyncio
import contextlib
import logging
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Final

from ramify.core.errors import ConfigError, ToolError

try:
    import mcp_types as types
    from anyio import BrokenResourceError, ClosedResourceError
    from mcp import Client, MCPError
    from pydantic import ValidationError

    from ramify.tools.mcp_address import McpAddress
    from ramify.tools.mcp_process import LastWords
except ImportError as error:
    raise ConfigError("tools of an MCP server need the package mcp: pip install 'ramify[mcp]'") from error

MAX_PAGES: Final = 100
"""Of a server's list of tools."""
MAX_TOLD_CHARS: Final = 400
MAX_UNANSWERED: Final = 3
"""Calls of the session of a run that may be given up with no answer between them: a dead server that still holds its
pipes costs as many deadlines, a slow one none of those who wait."""
CLOSE_S: Final = 9.0
"""Most time to end a server: 2 s for each of four ways (`mcp_process.ENDINGS`)."""
FAULTS: Final = frozenset(
    {types.CONNECTION_CLOSED, types.INTERNAL_ERROR, types.INVALID_REQUEST, types.PARSE_ERROR, types.REQUEST_TIMEOUT}
)
"""Codes of errors that no arguments cause; by some of them the SDK says that HTTP failed or a session is gone."""
UNSUPPORTED: Final = " not supported"
"""How the SDK ends an error of its own, with such a code, where a tool asks for a person or a model: there is none."""

# Applications that set logging up see what the SDK logs; without this, Python itself prints it on standard error.
logging.getLogger("mcp").addHandler(logging.NullHandler())


class Connection:
    """One session with a server. Made inside the running loop; `close` it."""

    def __init__(self, address: McpAddress) -> None:
        loop = asyncio.get_running_loop()
        self._address = address
        self._ready: asyncio.Future[Client] = loop.create_future()
        self._is_to_close = asyncio.Event()
        self.words = LastWords()
        self._tools: Sequence[types.Tool] = ()
        self._num_calls = 0
        """Under way."""
        self._num_unanswered = 0
        """Given up by their callers since the last answer."""
        self.is_over = False
        """Whether it has ended, or is about to."""
        self._task = loop.create_task(self._live(), name="mcp connection")

    @property
    def is_hung(self) -> bool:
        """Whether no call should be made any more; it ends when nobody waits for an answer."""
        return self._num_unanswered >= MAX_UNANSWERED

    @property
    def is_gone(self) -> bool:
        """Whether nothing of it is left."""
        return self._task.done()

    async def ready(self) -> Client:
        """The client, once the server has said what it is. Raises `ConfigError`, or `ToolError` where it does not."""
        try:
            return await asyncio.shield(self._ready)
        except (ToolError, ConfigError):
            raise
        except Exception as error:
            raise ToolError("tool_crashed", f"no session with the server: {told(error)}{self.words}") from error

    async def call(self, name: str, arguments: Mapping[str, Any]) -> types.CallToolResult:
        """Call a tool. Raises `ToolError` where there is no server any more, or no answer that makes sense."""
        client = await self.ready()
        self._num_calls += 1
        try:
            result = await client.call_tool(name, dict(arguments))
            self._num_unanswered = 0
        except asyncio.CancelledError:
            self._num_unanswered += 1
            raise
        except MCPError as error:
            if error.code not in FAULTS or error.message.endswith(UNSUPPORTED):
                return types.CallToolResult(content=[types.TextContent(text=error.message)], is_error=True)
            raise self._ended(error.message) from error
        except (ClosedResourceError, BrokenResourceError) as error:
            raise self._ended(told(error)) from error
        except (ValidationError, RuntimeError) as error:
            raise ToolError("tool_gave_up", f"the server's answer makes no sense: {told(error)}") from error
        finally:
            self._num_calls -= 1
            if self.is_hung and not self._num_calls:
                self.end()
        return result

    async def tools(self) -> Sequence[types.Tool]:
        """What the server offers."""
        await self.ready()
        return self._tools

    async def close(self) -> None:
        """End the session and wait for it. Cancelled meanwhile, it ends all the same."""
        self.end()
        await asyncio.shield(self._task)

    def end(self) -> None:
        """End the session soon."""
        if not self._is_to_close.is_set():
            self._has_ended()
            if not self._ready.done():
                self._task.cancel()

    def _has_ended(self) -> None:
        self.is_over = True
        self._is_to_close.set()

    async def _live(self) -> None:
        """Boundary to the SDK: whatever ends a session is told to those who wait for it, and to nobody else."""
        limit = asyncio.timeout(self._address.start_s + CLOSE_S)
        try:
            async with limit, contextlib.AsyncExitStack() as stack:
                self._ready.set_result(await self._opened(stack))
                limit.reschedule(None)
                await self._is_to_close.wait()
                limit.reschedule(asyncio.get_running_loop().time() + CLOSE_S)
        except BaseException as error:
            self._fail(error)
            if isinstance(error, asyncio.CancelledError) and not self._is_to_close.is_set():
                raise
        finally:
            self.is_over = True

    async def _opened(self, stack: contextlib.AsyncExitStack) -> Client:
        try:
            async with asyncio.timeout(self._address.start_s):
                streams = self._address.streams(self.words, self._has_ended)
                client = await stack.enter_async_context(Client(streams))
                # The SDK checks results by what it was told of all tools; where it was not, it warns at each call.
                self._tools = await _pages(client)
        except TimeoutError:
            raise TimeoutError(f"it did not answer in {self._address.start_s:g} s") from None
        return client

    def _fail(self, error: BaseException) -> None:
        if self._ready.done():
            return
        self._ready.set_exception(error if isinstance(error, Exception) else ToolError("tool_crashed", told(error)))
        self._ready.exception()  # Looked at here, so that nobody needs to.

    def _ended(self, why: str) -> ToolError:
        """What is said of a session that its server ended. Its task goes on to close what is left."""
        self.end()
        return ToolError("tool_crashed", f"the server failed: {why}{self.words}")


@dataclass(slots=True)
class McpServer:
    """All sessions with one server: the shared one, and those of branches."""

    address: McpAddress
    _shared: Connection | None = None
    _open: set[Connection] = field(default_factory=set[Connection])

    def shared(self) -> Connection:
        """The session of the whole run; a new one if it has ended."""
        if self._shared is None or self._shared.is_over or self._shared.is_hung:
            self._shared = self.connect()
        return self._shared

    def connect(self) -> Connection:
        """A session of its own."""
        self._open = {connection for connection in self._open if not connection.is_gone}
        connection = Connection(self.address)
        self._open.add(connection)
        return connection

    async def let_go(self) -> None:
        """Close all sessions and wait until they are gone."""
        self._shared = None
        connections, self._open = self._open, set()
        await asyncio.gather(*(connection.close() for connection in connections))


def listed_by(address: McpAddress) -> Sequence[types.Tool]:
    """What a server offers, asked from a thread of its own, so that it does not matter whether a loop is running here.

    Raises `ConfigError`.
    """
    answer: Future[Sequence[types.Tool]] = Future()

    def ask() -> None:
        try:
            answer.set_result(asyncio.run(_listed(address)))
        except BaseException as error:  # noqa: BLE001 - the future carries whatever it is
            answer.set_exception(error)

    threading.Thread(target=ask, name="mcp listing", daemon=True).start()
    try:
        return answer.result(timeout=2 * address.start_s + CLOSE_S)
    except ConfigError:
        raise
    except Exception as error:  # boundary to the SDK: a server that cannot be asked is one that was named wrongly
        raise ConfigError(f"it cannot be asked for its tools: {told(error)}") from error


async def _pages(client: Client) -> list[types.Tool]:
    """All that a server lists. Raises `ToolError` where that has no end."""
    tools: list[types.Tool] = []
    cursor: str | None = None
    for _ in range(MAX_PAGES):
        page = await client.list_tools(cursor=cursor)
        tools += page.tools
        cursor = page.next_cursor
        if cursor is None:
            return tools
    raise ToolError("tool_gave_up", f"its list of tools has more than {MAX_PAGES} pages")


async def _listed(address: McpAddress) -> Sequence[types.Tool]:
    connection = Connection(address)
    try:
        return await connection.tools()
    finally:
        await connection.close()


def told(error: BaseException) -> str:
    """Kind and message of what is at the bottom of an error; groups of the SDK's tasks hold one for each."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    message = " ".join(str(error).split())
    return (
        message[:MAX_TOLD_CHARS]
        if isinstance(error, ToolError | TimeoutError) and message
        else (f"{type(error).__name__}: {message[:MAX_TOLD_CHARS]}")
    )
