"""MCP process: a server started here, as the two message streams of the SDK's client.

Owns the process, and limits the cost of a misbehaving one. A line longer than `MAX_MESSAGE_BYTES` ends the session.
Lines that are not messages, answers to no request, and notifications are skipped. Unrequested input is read at a rate
of at most `UNASKED_BYTES` per `PAUSE_S`, and at most `MAX_OWED` requests of the server may wait for an answer. The end
of its standard error is kept. When the streams close, the process is ended by the steps of `ENDINGS`, each harder than
the one before.

The answer to a call tells the client, in its `_meta`, how many seconds it took: from when the call was written to the
server's input to when the answer's last byte came, however late the event loop reads it (`edge/arrivals.py`).
"""

import asyncio
import contextlib
import os
import signal
import time
from asyncio.subprocess import PIPE, SubprocessStreamProtocol
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import anyio
import mcp_types as types
from anyio.lowlevel import checkpoint
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client.stdio import get_default_environment
from mcp.shared.message import SessionMessage

from ramify.edge.arrivals import Arrival, num_unread

MAX_MESSAGE_BYTES: Final = 16 << 20
"""Largest message: a few photographs. It is held several times in memory while it is read."""
MAX_WORDS_BYTES: Final = 1600
"""Kept bytes of its standard error: 400 characters in any script."""
LAST_WORDS_S: Final = 0.5
"""Time to wait for the last words on standard error once the output has ended."""
UNASKED_BYTES: Final = 16 << 10
LINE_COST: Final = 256
"""Cost in bytes that each unrequested line adds to its length: even a short invalid line takes time to check."""
PAUSE_S: Final = 0.01
MAX_OWED: Final = 100
ENDINGS: Final = (None, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL)
"""Steps to end it, in this order: close its input; SIGTERM to its process group; SIGHUP to its guard, which kills
everything the server has started (`edge/stdio_guard.py`); SIGKILL to the group."""
PATIENCE_S: Final = 2.0
"""Time between two steps (as in the SDK)."""
POLL_S: Final = 0.01
CALL: Final = "tools/call"
"""The requests whose answers tell their seconds."""
TOOK: Final = "ramify/took_s"
"""Key of the seconds in an answer's `_meta`. What a server says under it is replaced."""

Streams = tuple[MemoryObjectReceiveStream[SessionMessage | Exception], MemoryObjectSendStream[SessionMessage]]
"""Its messages, and the messages for it."""


@dataclass(slots=True)
class LastWords:
    """The end of what a server wrote to its standard error."""

    _end: bytes = b""

    def add(self, said: bytes) -> None:
        self._end = (self._end + said)[-MAX_WORDS_BYTES:]

    def __str__(self) -> str:
        """Text to append to a message about the server; '' if it wrote nothing."""
        said = self._end.decode(errors="ignore").strip()[-MAX_WORDS_BYTES // 4 :].strip()
        return f"; its last words: {said}" if said else ""


@contextlib.asynccontextmanager
async def running(
    command: Sequence[str],
    *,
    environment: Mapping[str, str],
    folder: str | None,
    words: LastWords,
    ended: Callable[[], None],
) -> AsyncIterator[Streams]:
    """Run a server in this block. `ended` is called when it will send nothing more. Raises `OSError`."""
    loop = asyncio.get_running_loop()
    process, pipes = await loop.subprocess_exec(
        lambda: _Pipes(limit=MAX_MESSAGE_BYTES, loop=loop),
        *command,
        env=get_default_environment() | dict(environment),
        cwd=folder,
        stdin=PIPE,
        stdout=PIPE,
        stderr=PIPE,
        start_new_session=True,
    )
    to_client, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    outgoing, from_client = anyio.create_memory_object_stream[SessionMessage](0)
    output = process.get_pipe_transport(1).get_extra_info("pipe").fileno()  # pyright: ignore[reportOptionalMemberAccess]
    arrival = Arrival(output, lambda: pipes.num_read + num_unread(output))
    server = _Process(process, pipes, to_client, from_client, words, ended, arrival)
    tasks = [loop.create_task(work) for work in (server.hear(), server.read(), server.write())]
    try:
        yield incoming, outgoing
    finally:
        try:
            incoming.close()
            outgoing.close()
            await server.end()
        finally:
            arrival.close()
            process.close()
            to_client.close()
            from_client.close()
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)


class _Pipes(SubprocessStreamProtocol):
    """The pipes of a process, and how many bytes of its output were read."""

    num_read = 0

    def pipe_data_received(self, fd: int, data: bytes | str) -> None:
        if fd == 1:
            self.num_read += len(data)
        super().pipe_data_received(fd, data)


@dataclass(slots=True)
class _Process:
    """A server's three pipes, with one task each."""

    process: asyncio.SubprocessTransport
    pipes: _Pipes
    to_client: MemoryObjectSendStream[SessionMessage | Exception]
    from_client: MemoryObjectReceiveStream[SessionMessage]
    words: LastWords
    ended: Callable[[], None]
    arrival: Arrival
    """Of the bytes of its output."""
    _is_over: bool = False
    _was_heard: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when its standard error has ended."""
    _asked: dict[str, float | None] = field(default_factory=dict[str, "float | None"])
    """Ids of requests that the server has not answered, and when it was told those that are calls."""
    _num_bytes: int = 0
    """Length of its messages so far."""
    _num_owed: int = 0
    """Number of the server's own requests that were not answered."""

    async def hear(self) -> None:
        """Keep the end of its standard error."""
        assert self.pipes.stderr is not None
        try:
            while said := await self.pipes.stderr.read(UNASKED_BYTES):
                self.words.add(said)
                if len(said) == UNASKED_BYTES and not self._is_over:
                    await asyncio.sleep(PAUSE_S)
        finally:
            self._was_heard.set()

    async def read(self) -> None:
        """Pass its messages on until it has ended. Output after that is read and dropped, because otherwise the process
        might never exit."""
        assert self.pipes.stdout is not None
        with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            await self._deliver()
        self._is_over = True
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._was_heard.wait(), LAST_WORDS_S)
        self._end_session()
        while await self.pipes.stdout.read(UNASKED_BYTES):
            await checkpoint()

    async def write(self) -> None:
        """Send the client's messages to it. The session ends when it no longer reads."""
        assert self.pipes.stdin is not None
        try:
            with contextlib.suppress(anyio.ClosedResourceError, OSError):
                async for sent in self.from_client:
                    self._note(sent.message)
                    line = sent.message.model_dump_json(by_alias=True, exclude_unset=True)
                    self._begin(sent.message)
                    self.pipes.stdin.write(f"{line}\n".encode())
                    await self.pipes.stdin.drain()
        finally:
            self._end_session()

    async def end(self) -> None:
        """End the process step by step, and wait for its exit."""
        assert self.pipes.stdin is not None
        self.pipes.stdin.close()
        for blow in ENDINGS:
            if blow is not None:
                self._send(blow)
            if await self._has_exited():
                return

    async def _deliver(self) -> None:
        """Pass on its answers, and its own requests up to `MAX_OWED`."""
        unasked = 0
        while line := await self._line():
            self._num_bytes += len(line)
            match message := _message(line):
                case types.JSONRPCResponse() | types.JSONRPCError() if str(message.id) in self._asked:
                    began = self._asked.pop(str(message.id))
                    if began is not None and isinstance(message, types.JSONRPCResponse):
                        _tell(message.result, self._arrived() - began)
                    await self.to_client.send(SessionMessage(message))
                    continue
                case types.JSONRPCRequest() if self._num_owed < MAX_OWED:
                    self._num_owed += 1
                    await self.to_client.send(SessionMessage(message))
                case _:
                    """Nobody waits for it."""
            unasked += LINE_COST + len(line)
            if unasked >= UNASKED_BYTES:
                unasked = 0
                await asyncio.sleep(PAUSE_S)

    async def _line(self) -> bytes:
        """The next line; empty if there is none or it is too long."""
        assert self.pipes.stdout is not None
        try:
            return await self.pipes.stdout.readuntil()
        except asyncio.IncompleteReadError as error:
            return error.partial
        except asyncio.LimitOverrunError:
            self.words.add(f"\n[ended: it wrote a line longer than {MAX_MESSAGE_BYTES} bytes]".encode())
            return b""

    def _note(self, message: types.JSONRPCMessage) -> None:
        """Record which side owes an answer."""
        if isinstance(message, types.JSONRPCRequest):
            self._asked[str(message.id)] = None
        elif not isinstance(message, types.JSONRPCNotification):
            self._num_owed -= 1

    def _begin(self, message: types.JSONRPCMessage) -> None:
        """A message is written now. Noted before, so that the seconds of a call are at least the server's own."""
        if isinstance(message, types.JSONRPCRequest) and message.method == CALL:
            self._asked[str(message.id)] = time.monotonic()

    def _arrived(self) -> float:
        """When the last message that was read was there."""
        return self.arrival.at(self._num_bytes) or time.monotonic()

    def _end_session(self) -> None:
        self.to_client.close()
        self.ended()

    def _send(self, blow: signal.Signals) -> None:
        pid = self.process.get_pid()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if blow == signal.SIGHUP:
                os.kill(pid, blow)
            else:
                os.killpg(pid, blow)

    async def _has_exited(self) -> bool:
        """Whether it exits within `PATIENCE_S`. Checks the process and not the pipes, which its child processes may
        keep open."""
        end = asyncio.get_running_loop().time() + PATIENCE_S
        while self.process.get_returncode() is None:
            if asyncio.get_running_loop().time() >= end:
                return False
            await asyncio.sleep(POLL_S)
        return True


def _tell(result: dict[str, Any], took_s: float) -> None:
    """Put the seconds of a call into its answer, unless its `_meta` is no object, which the client refuses."""
    if isinstance(meta := result.get("_meta", {}), dict):
        result["_meta"] = {**meta, TOOK: took_s}


def _message(line: bytes) -> types.JSONRPCMessage | None:
    """The message in a line; None = not a message. Invalid UTF-8 damages only its own character."""
    try:
        return types.jsonrpc_message_adapter.validate_json(line.decode(errors="replace"), by_name=False)
    except ValueError:
        return None
