"""MCP address: where a server is, and the message streams between it and the SDK's client.

A server started here gets only the variables that the SDK considers harmless (HOME, LOGNAME, PATH, SHELL, TERM, USER)
and the variables named for it. On Linux it ends with this process, however this process ends (`edge/stdio_guard.py`). A
server behind a URL gets the headers named for it. No message from either is longer than `MAX_MESSAGE_BYTES`.
"""

import contextlib
import os
import shutil
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import httpx2
from mcp.client.streamable_http import streamable_http_client

from ramify.core.errors import ConfigError
from ramify.edge import stdio_guard
from ramify.tools.mcp_folders import PLACEHOLDER, BranchFolder
from ramify.tools.mcp_process import MAX_MESSAGE_BYTES, LastWords, running

READ_S: Final = 3600.0
"""Timeout for reading an HTTP answer; the toolbox sets the timeout of a call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class McpAddress:
    """Address of a server: a command or a URL."""

    command: str | None
    args: Sequence[str]
    env: Mapping[str, str]
    env_from: Sequence[str]
    """Names of our variables that the server gets."""
    cwd: str | None
    url: str | None
    headers: Mapping[str, str]
    """Header -> name of our variable with its value."""
    start_s: float
    watch: Callable[[LastWords], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext
    """What watches the process while it runs."""

    def at(self, folder: BranchFolder) -> "McpAddress":
        """The address of a server for one branch, with the path of its folder in place of `{branch}`."""

        def put(text: str) -> str:
            return text.replace(PLACEHOLDER, str(folder.path))

        env = {"TMPDIR": str(folder.temporary), **{name: put(value) for name, value in self.env.items()}}
        cwd = str(folder.path) if self.cwd is None else put(self.cwd)
        return replace(self, args=[put(each) for each in self.args], env=env, cwd=cwd)

    def environment(self) -> dict[str, str]:
        """Variables for the server. Raises `ConfigError` if one is not set."""
        return {name: _ours(name) for name in self.env_from} | dict(self.env)

    def argv(self) -> list[str]:
        """The command to run. Raises `ConfigError` if the program does not exist."""
        path = self.environment().get("PATH", os.environ.get("PATH"))
        program = shutil.which(str(self.command), path=path)
        if program is None:
            raise ConfigError(f"command = {self.command!r}: there is no such program")
        if sys.platform != "linux":
            return [program, *self.args]
        return [
            *(sys.executable, "-I", "-S", stdio_guard.__file__, stdio_guard.STREAMS, str(os.getpid())),
            *(str(Path(program).absolute()), *self.args),
        ]

    @contextlib.asynccontextmanager
    async def streams(self, words: LastWords, ended: Callable[[], None]) -> AsyncIterator[Any]:
        """The transport of a client. `ended` is called when the server process will send nothing more."""
        if self.url is None:
            with self.watch(words):
                async with running(
                    self.argv(), environment=self.environment(), folder=self.cwd, words=words, ended=ended
                ) as streams:
                    yield streams
        else:
            headers = {name: _ours(variable) for name, variable in self.headers.items()}
            async with (
                httpx2.AsyncClient(
                    headers={"Accept-Encoding": "identity", **headers},
                    timeout=httpx2.Timeout(self.start_s, read=READ_S),
                    event_hooks={"response": [_limit]},
                ) as http,
                streamable_http_client(self.url, http_client=http, max_sse_event_size=MAX_MESSAGE_BYTES) as streams,
            ):
                yield streams


class _Limited(httpx2.AsyncByteStream):
    """The body of an answer that is one message. The SDK passes errors raised here to the caller that waits for the
    answer."""

    def __init__(self, response: httpx2.Response) -> None:
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        self._body: Final = response.stream
        self._is_packed: Final = response.headers.get("content-encoding", "identity") != "identity"

    async def __aiter__(self) -> AsyncIterator[bytes]:
        if self._is_packed:
            raise httpx2.StreamError("it is compressed, which was not asked for")
        num_bytes = 0
        async for chunk in self._body:
            num_bytes += len(chunk)
            if num_bytes > MAX_MESSAGE_BYTES:
                raise httpx2.StreamError(f"it is longer than {MAX_MESSAGE_BYTES} bytes")
            yield chunk

    async def aclose(self) -> None:
        await self._body.aclose()


async def _limit(response: httpx2.Response) -> None:
    """Limit the size of an answer. Event streams are left out: each event has its own limit."""
    if not response.headers.get("content-type", "").lower().startswith("text/event-stream"):
        response.stream = _Limited(response)


def _ours(variable: str) -> str:
    try:
        return os.environ[variable]
    except KeyError:
        raise ConfigError(f"the environment variable {variable}, which an MCP server needs, is not set") from None
