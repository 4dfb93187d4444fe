"""MCP client: the only module that talks to MCP servers, through the official SDK (extra `mcp`).

A client belongs to the task that opened it, so a `Connection` is its own task. It opens, waits until it is told to
close or the server has ended, and closes within `CLOSE_S`. Calls run in the callers' tasks, any number at once. If the
shared session of a run leaves several calls unanswered in a row, a new session replaces it.
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
    from ramify.tools.mcp_process import TOOK, LastWords
except ImportError as error:
    raise ConfigError("tools of an MCP server need the package mcp: pip install 'ramify[mcp]'") from error

MAX_PAGES: Final = 100
"""Most pages of a server's list of tools."""
MAX_TOLD_CHARS: Final = 400
MAX_UNANSWERED: Final = 3
"""Calls of the run's shared session that may time out in a row before it is replaced. A dead server with open pipes
costs this many timeouts. Calls that already wait for a slow server are not cut off."""
CLOSE_S: Final = 9.0
"""Most time to end a server: 2 s for each of the four steps in `mcp_process.ENDINGS`."""
FAULTS: Final = frozenset(
    {types.CONNECTION_CLOSED, types.INTERNAL_ERROR, types.INVALID_REQUEST, types.PARSE_ERROR, types.REQUEST_TIMEOUT}
)
"""Error codes that no arguments can cause. The SDK uses some of them when HTTP failed or a session is gone."""
UNSUPPORTED: Final = " not supported"
"""The SDK's own errors end with this, with one of these codes, if a tool asks for a person or a model: we offer
neither."""

# Applications that configure logging see the SDK's logs. Without this handler, Python prints them on standard error.
logging.getLogger("mcp").addHandler(logging.NullHandler())


class Connection:
    """One session with a server. Make it inside the running loop, and `close` it."""

    def __init__(self, address: McpAddress) -> None:
        loop = asyncio.get_running_loop()
        self._address = address
        self._ready: asyncio.Future[Client] = loop.create_future()
        self._is_to_close = asyncio.Event()
        self.words = LastWords()
        self._tools: Sequence[types.Tool] = ()
        self._num_calls = 0
        """Calls in progress."""
        self._num_unanswered = 0
        """Calls given up by their callers since the last answer."""
        self.is_over = False
        """Whether it has ended or is about to end."""
        self._task = loop.create_task(self._live(), name="mcp connection")

    @property
    def is_hung(self) -> bool:
        """Whether it should get no more calls. It ends when nobody waits for an answer."""
        return self._num_unanswered >= MAX_UNANSWERED

    @property
    def is_gone(self) -> bool:
        """Whether nothing of it is left."""
        return self._task.done()

    async def ready(self) -> Client:
        """The client, once the server has identified itself. Raises `ConfigError`, or `ToolError` if the server does
        not answer."""
        try:
            return await asyncio.shield(self._ready)
        except (ToolError, ConfigError):
            raise
        except Exception as error:
            raise ToolError("tool_crashed", f"no session with the server: {told(error)}{self.words}") from error

    async def call(self, name: str, arguments: Mapping[str, Any]) -> types.CallToolResult:
        """Call a tool. Raises `ToolError` if the server is gone or its answer is invalid."""
        client = await self.ready()
        self._num_calls += 1
        try:
            result = await client.call_tool(name, dict(arguments))
            self._num_unanswered = 0
            if self._address.url is not None and result.meta:
                result.meta.pop(TOOK, None)  # Only what `mcp_process` says is true.
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
        """The server's tools."""
        await self.ready()
        return self._tools

    async def close(self) -> None:
        """End the session and wait for its end. If cancelled, the session still ends."""
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
        """Boundary to the SDK: an error that ends a session is reported only to those who wait for the session."""
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
                # The SDK checks results against the list of all tools; without that list it warns at each call.
                self._tools = await _pages(client)
        except TimeoutError:
            raise TimeoutError(f"it did not answer in {self._address.start_s:g} s") from None
        return client

    def _fail(self, error: BaseException) -> None:
        if self._ready.done():
            return
        self._ready.set_exception(error if isinstance(error, Exception) else ToolError("tool_crashed", told(error)))
        self._ready.exception()  # Marked as seen here, so that nobody else has to.

    def _ended(self, why: str) -> ToolError:
        """The error for a session that its server ended. The task of the session then closes what is left."""
        self.end()
        return ToolError("tool_crashed", f"the server failed: {why}{self.words}")


@dataclass(slots=True)
class McpServer:
    """All sessions with one server: the shared session and the sessions of branches."""

    address: McpAddress
    _shared: Connection | None = None
    _open: set[Connection] = field(default_factory=set[Connection])

    def shared(self) -> Connection:
        """The shared session of the run; a new one if it has ended or hangs."""
        if self._shared is None or self._shared.is_over or self._shared.is_hung:
            self._shared = self.connect()
        return self._shared

    def connect(self, address: McpAddress | None = None) -> Connection:
        """A new session; `address` is that of a branch, None = the server's."""
        self._open = {connection for connection in self._open if not connection.is_gone}
        connection = Connection(address or self.address)
        self._open.add(connection)
        return connection

    async def let_go(self) -> None:
        """Close all sessions and wait until they are gone."""
        self._shared = None
        connections, self._open = self._open, set()
        await asyncio.gather(*(connection.close() for connection in connections))


def listed_by(address: McpAddress) -> Sequence[types.Tool]:
    """A server's tools. Asks in a separate thread, so it does not matter whether an event loop is running here.

    Raises `ConfigError`.
    """
    answer: Future[Sequence[types.Tool]] = Future()

    def ask() -> None:
        try:
            answer.set_result(asyncio.run(_listed(address)))
        except BaseException as error:  # noqa: BLE001 - the future carries any error
            answer.set_exception(error)

    threading.Thread(target=ask, name="mcp listing", daemon=True).start()
    try:
        return answer.result(timeout=2 * address.start_s + CLOSE_S)
    except ConfigError:
        raise
    except Exception as error:  # boundary to the SDK: if a server cannot be asked, its options are wrong
        raise ConfigError(f"it cannot be asked for its tools: {told(error)}") from error


async def _pages(client: Client) -> list[types.Tool]:
    """All tools that a server lists. Raises `ToolError` if there are too many pages."""
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
    """Type and message of the first error inside nested exception groups, which the SDK's tasks raise."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    message = " ".join(str(error).split())
    return (
        message[:MAX_TOLD_CHARS]
        if isinstance(error, ToolError | TimeoutError) and message
        else (f"{type(error).__name__}: {message[:MAX_TOLD_CHARS]}")
    )
