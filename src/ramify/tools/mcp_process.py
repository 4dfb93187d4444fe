"""MCP process: a server started here, as the two message streams of the SDK's client.

Owns the process, and limits the cost of one that misbehaves. A line longer than `MAX_MESSAGE_BYTES` ends it. Lines that
are no message, answers to no request and notifications are skipped. Unrequested input is read at `UNASKED_BYTES` per
`PAUSE_S` at most, and at most `MAX_OWED` requests of the server wait for an answer. The end of its standard error is
kept. The process ends with its streams, by the steps of `ENDINGS`, each harder than the one before.
"""

import asyncio
import contextlib
import os
import signal
from asyncio.subprocess import PIPE, SubprocessStreamProtocol
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import anyio
import mcp_types as types
from anyio.lowlevel import checkpoint
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client.stdio import get_default_environment
from mcp.shared.message import SessionMessage

MAX_MESSAGE_BYTES: Final = 16 << 20
"""Of one message: a few photographs. It is held several times over while it is read."""
MAX_WORDS_BYTES: Final = 1600
"""Of its standard error, kept: 400 characters in any script."""
LAST_WORDS_S: Final = 0.5
"""Time for them to come once its output has ended."""
UNASKED_BYTES: Final = 16 << 10
LINE_COST: Final = 256
"""Bytes a line unasked for counts beside its own: what is wrong takes its time to be found so, however short."""
PAUSE_S: Final = 0.01
MAX_OWED: Final = 100
ENDINGS: Final = (None, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL)
"""What ends it, in this order: that its input is closed; a wish to its process group; a wish to whoever holds it, who
kills all it has started (`edge/stdio_guard.py`); a blow to the group."""
PATIENCE_S: Final = 2.0
"""Between one and the next (the SDK's own)."""
POLL_S: Final = 0.01

Streams = tuple[MemoryObjectReceiveStream[SessionMessage | Exception], MemoryObjectSendStream[SessionMessage]]
"""Where its messages come from, and where those for it go."""


@dataclass(slots=True)
class LastWords:
    """The end of what a server wrote to its standard error."""

    _end: bytes = b""

    def add(self, said: bytes) -> None:
        self._end = (self._end + said)[-MAX_WORDS_BYTES:]

    def __str__(self) -> str:
        """As the end of a message about the server; nothing where it was silent."""
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
    """A server that runs in this block; `ended` is called when it says nothing any more. Raises `OSError`."""
    loop = asyncio.get_running_loop()
    process, pipes = await loop.subprocess_exec(
        lambda: SubprocessStreamProtocol(limit=MAX_MESSAGE_BYTES, loop=loop),
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
    server = _Process(process, pipes, to_client, from_client, words, ended)
    tasks = [loop.create_task(work) for work in (server.hear(), server.read(), server.write())]
    try:
        yield incoming, outgoing
    finally:
        try:
            incoming.close()
            outgoing.close()
            await server.end()
        finally:
            process.close()
            to_client.close()
            from_client.close()
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)


@dataclass(slots=True)
class _Process:
    """A server's three pipes, each with a task."""

    process: asyncio.SubprocessTransport
    pipes: SubprocessStreamProtocol
    to_client: MemoryObjectSendStream[SessionMessage | Exception]
    from_client: MemoryObjectReceiveStream[SessionMessage]
    words: LastWords
    ended: Callable[[], None]
    _is_over: bool = False
    _was_heard: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when there are no more words."""
    _asked: set[str] = field(default_factory=set[str])
    """Ids of requests that it has not answered."""
    _num_owed: int = 0
    """Requests of its own that were not answered."""

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
        """Hand its messages on until it has ended. What it writes after that is read too, or it might never exit."""
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
        """Hand the client's messages to it; where it reads no more there is no session."""
        assert self.pipes.stdin is not None
        try:
            with contextlib.suppress(anyio.ClosedResourceError, OSError):
                async for sent in self.from_client:
                    self._note(sent.message)
                    line = sent.message.model_dump_json(by_alias=True, exclude_unset=True)
                    self.pipes.stdin.write(f"{line}\n".encode())
                    await self.pipes.stdin.drain()
        finally:
            self._end_session()

    async def end(self) -> None:
        """Wait for its end, and bring it about."""
        assert self.pipes.stdin is not None
        self.pipes.stdin.close()
        for blow in ENDINGS:
            if blow is not None:
                self._send(blow)
            if await self._has_exited():
                return

    async def _deliver(self) -> None:
        """Hand on its answers, and what it asks for as far as the client can follow."""
        unasked = 0
        while line := await self._line():
            match message := _message(line):
                case types.JSONRPCResponse() | types.JSONRPCError() if str(message.id) in self._asked:
                    self._asked.discard(str(message.id))
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
        """The next line; nothing where there is none, or none that can be held."""
        assert self.pipes.stdout is not None
        try:
            return await self.pipes.stdout.readuntil()
        except asyncio.IncompleteReadError as error:
            return error.partial
        except asyncio.LimitOverrunError:
            self.words.add(f"\n[ended: it wrote a line longer than {MAX_MESSAGE_BYTES} bytes]".encode())
            return b""

    def _note(self, message: types.JSONRPCMessage) -> None:
        """Keep in mind who owes an answer."""
        if isinstance(message, types.JSONRPCRequest):
            self._asked.add(str(message.id))
        elif not isinstance(message, types.JSONRPCNotification):
            self._num_owed -= 1

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
        """Whether it does in `PATIENCE_S`. Its process is looked at: what it has started may hold its pipes open."""
        end = asyncio.get_running_loop().time() + PATIENCE_S
        while self.process.get_returncode() is None:
            if asyncio.get_running_loop().time() >= end:
                return False
            await asyncio.sleep(POLL_S)
        return True


def _message(line: bytes) -> types.JSONRPCMessage | None:
    """The message of a line; None = it is none. Bytes that are no UTF-8 spoil their character alone."""
    try:
        return types.jsonrpc_message_adapter.validate_json(line.decode(errors="replace"), by_name=False)
    except ValueError:
        return None
