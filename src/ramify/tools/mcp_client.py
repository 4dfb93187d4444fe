"""The one place that talks to MCP servers, by the official SDK (extra `mcp`).

A client belongs to the task that opened it, so a `Connection` is a task of its own: it opens, waits until it is told to
close, and closes; calls are made in the callers' tasks, as many at once as they like. A server on standard input and
output is given no variable of ours but those the SDK holds harmless (HOME, LOGNAME, PATH, SHELL, TERM, USER) and those
named for it; it ends with its connection, and on Linux with this process, however that ends (`tether.py`).
"""

import asyncio
import contextlib
import logging
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TextIO

from ramify.core.errors import ConfigError, ToolError

try:
    import httpx2
    import mcp_types as types
    from anyio import BrokenResourceError, ClosedResourceError
    from mcp import Client, MCPError, StdioServerParameters
    from mcp.client.stdio import stdio_client
    from mcp.client.streamable_http import streamable_http_client
    from pydantic import ValidationError
except ImportError as error:
    raise ConfigError("tools of an MCP server need the package mcp: pip install 'ramify[mcp]'") from error

TETHER: Final = Path(__file__).with_name("tether.py")
MAX_PAGES: Final = 100
"""Of a server's list of tools."""
MAX_LOG_BYTES: Final = 1 << 20
"""Of what a server writes to its standard error; it is emptied then."""
MAX_TOLD_CHARS: Final = 400
CLOSE_S: Final = 8.0
"""Most time the SDK takes to end a server: 0.5 s to flush, then 2 s each by itself, after SIGTERM and after SIGKILL."""
FAULTS: Final = frozenset(
    {types.CONNECTION_CLOSED, types.INTERNAL_ERROR, types.INVALID_REQUEST, types.PARSE_ERROR, types.REQUEST_TIMEOUT}
)
"""Codes of errors that no arguments cause; by some of them the SDK says that HTTP failed or a session is gone."""
READ_S: Final = 3600.0
"""Of an HTTP answer; the deadline of a call is the toolbox's."""

# Applications that set logging up see what the SDK logs; without this, Python itself prints it on standard error.
logging.getLogger("mcp").addHandler(logging.NullHandler())


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where a server is: a command, or a URL."""

    command: str | None
    args: Sequence[str]
    env: Mapping[str, str]
    env_from: Sequence[str]
    """Names of our variables that it is given."""
    cwd: str | None
    url: str | None
    headers: Mapping[str, str]
    """Header -> name of our variable that holds its value."""
    start_s: float

    def environment(self) -> dict[str, str]:
        """Variables for the server. Raises `ConfigError` for one that is not set."""
        return {name: _ours(name) for name in self.env_from} | dict(self.env)

    def argv(self) -> list[str]:
        """What is run. Raises `ConfigError` where the program is not there."""
        path = self.environment().get("PATH", os.environ.get("PATH"))
        program = shutil.which(str(self.command), path=path)
        if program is None:
            raise ConfigError(f"command = {self.command!r}: there is no such program")
        if sys.platform != "linux":
            return [program, *self.args]
        return [sys.executable, "-I", "-S", str(TETHER), str(os.getpid()), str(Path(program).absolute()), *self.args]

    @contextlib.asynccontextmanager
    async def streams(self, log: TextIO) -> AsyncIterator[Any]:
        """The transport that a client speaks through."""
        if self.url is None:
            command, *args = self.argv()
            server = StdioServerParameters(command=command, args=args, env=self.environment(), cwd=self.cwd)
            async with stdio_client(server, errlog=log) as streams:
                yield streams
        else:
            headers = {name: _ours(variable) for name, variable in self.headers.items()}
            timeout = httpx2.Timeout(self.start_s, read=READ_S)
            async with (
                httpx2.AsyncClient(headers=headers, timeout=timeout) as http,
                streamable_http_client(self.url, http_client=http) as streams,
            ):
                yield streams


class Connection:
    """One session with a server. Made inside the running loop; `close` it."""

    def __init__(self, address: Address) -> None:
        loop = asyncio.get_running_loop()
        self._address = address
        self._ready: asyncio.Future[Client] = loop.create_future()
        self._is_to_close = asyncio.Event()
        self._log = _log()
        self._tools: Sequence[types.Tool] = ()
        self._words = ""
        self.is_over = False
        """Whether it has ended, or is about to."""
        self._task = loop.create_task(self._live(), name="mcp connection")

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
            raise ToolError("tool_crashed", f"no session with the server: {told(error)}{self._last_words()}") from error

    async def call(self, name: str, arguments: Mapping[str, Any]) -> types.CallToolResult:
        """Call a tool. Raises `ToolError` where there is no server any more, or no answer that makes sense."""
        client = await self.ready()
        self._keep_log_short()
        try:
            return await client.call_tool(name, dict(arguments))
        except MCPError as error:
            if error.code not in FAULTS:
                return types.CallToolResult(content=[types.TextContent(text=error.message)], is_error=True)
            raise self._ended(error.message) from error
        except (ClosedResourceError, BrokenResourceError) as error:
            raise self._ended(told(error)) from error
        except (ValidationError, RuntimeError) as error:
            raise ToolError("tool_gave_up", f"the server's answer makes no sense: {told(error)}") from error

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
        self.is_over = True
        if not self._is_to_close.is_set():
            self._is_to_close.set()
            if not self._ready.done():
                self._task.cancel()

    async def _live(self) -> None:
        """Boundary to the SDK: whatever ends a session is told to those who wait for it, and to nobody else."""
        try:
            async with contextlib.AsyncExitStack() as stack:
                self._ready.set_result(await self._opened(stack))
                await self._is_to_close.wait()
        except BaseException as error:
            self._fail(error)
            if isinstance(error, asyncio.CancelledError) and not self._is_to_close.is_set():
                raise
        finally:
            self.is_over = True
            self._words = self._last_words()
            self._log.close()

    async def _opened(self, stack: contextlib.AsyncExitStack) -> Client:
        try:
            async with asyncio.timeout(self._address.start_s):
                client = await stack.enter_async_context(Client(self._address.streams(self._log)))
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
        words = self._last_words()
        self.end()
        return ToolError("tool_crashed", f"the server failed: {why}{words}")

    def _last_words(self) -> str:
        """The end of what the server wrote to its standard error."""
        if self._log.closed:
            return self._words
        file = self._log.fileno()
        words = os.pread(file, MAX_TOLD_CHARS, max(0, os.fstat(file).st_size - MAX_TOLD_CHARS)).decode(errors="ignore")
        return f"; its last words: {words.strip()}" if words.strip() else ""

    def _keep_log_short(self) -> None:
        if not self._log.closed and os.fstat(self._log.fileno()).st_size > MAX_LOG_BYTES:
            os.ftruncate(self._log.fileno(), 0)


@dataclass(slots=True)
class Server:
    """All sessions with one server: the shared one, and those of branches."""

    address: Address
    _shared: Connection | None = None
    _open: set[Connection] = field(default_factory=set[Connection])

    def shared(self) -> Connection:
        """The session of the whole run; a new one if it has ended."""
        if self._shared is None or self._shared.is_over:
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


def listed_by(address: Address) -> Sequence[types.Tool]:
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
    """All that a server lists."""
    page = await client.list_tools()
    tools = list(page.tools)
    for _ in range(MAX_PAGES):
        if page.next_cursor is None:
            break
        page = await client.list_tools(cursor=page.next_cursor)
        tools += page.tools
    return tools


async def _listed(address: Address) -> Sequence[types.Tool]:
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


def _log() -> TextIO:
    """A file without a name. What is written goes to its end, also after it was emptied."""
    number, name = tempfile.mkstemp(prefix="ramify-mcp-")
    os.close(number)
    file = Path(name).open("a+", encoding="utf-8")  # noqa: SIM115 - closed by the connection
    Path(name).unlink()
    return file


def _ours(variable: str) -> str:
    try:
        return os.environ[variable]
    except KeyError:
        raise ConfigError(f"the environment variable {variable} is to go to an MCP server and is not set") from None
