"""Frames: messages between this machine and another one, over two descriptors.

Each side first writes `GREETING`. Then a message is its length in four bytes and itself in MessagePack; an empty one
says that the side is alive. The messages are `RemoteRequest` (to the remote side) and `RemoteAnswer` (back). Bytes that
are no such message end the connection, and so does a side that says nothing for `SILENCE_S`.
"""

import os
import re
import threading
import time
from collections.abc import Callable
from typing import Final, Literal

import msgspec

from ramify.core.segment import ToolStatus
from ramify.core.tool import LOST
from ramify.edge.daemon_threads import DaemonThreads
from ramify.workspaces.command import polled

GREETING: Final = b"ramify\0workspaces\n"
MAX_CONTENT_BYTES: Final = 64 << 20
"""The most that one message holds of files. A start folder is sent in parts."""
MAX_FRAME_BYTES: Final = MAX_CONTENT_BYTES + (1 << 20)
MAX_SHOWN: Final = 300
PING_S: Final = 10.0
SILENCE_S: Final = 60.0
READ_BYTES: Final = 1 << 20
DIGEST: Final = re.compile("[0-9a-f]{64}")
"""A sha256, as messages hold it."""
_LENGTH_BYTES: Final = 4

Operation = Literal[
    "setup", "try_walls", "back_end", "start", "drop", "open", "call", "fork", "close", "digest", "upload", "download",
    "scored", "cancel",
]  # fmt: skip
Reason = Literal["", "sandbox_lost", "tool_gave_up"]


class RemoteRequest(msgspec.Struct, omit_defaults=True, frozen=True):
    """What the remote side is asked. Which fields an operation reads is in `remote_server.py`."""

    id: int
    op: Operation
    session: int = 0
    fork: int = 0
    """Number of the session that is made."""
    text: str = ""
    """A command, or an image."""
    source: str = ""
    """The start folder, as the user named it."""
    digest: str = ""
    """Sha256 of a packed start folder."""
    data: bytes = b""
    """A part of a start folder, a path, or the options of the tool."""
    size: int = 0
    offset: int = 0
    mode: int = 0
    files: tuple[tuple[bytes, bytes], ...] = ()


class RemoteAnswer(msgspec.Struct, omit_defaults=True, frozen=True):
    """What the remote side answers. The first one, of id 0, holds its version."""

    id: int
    reason: Reason = ""
    """Of a `ToolError`, whose message is `text`; empty = none."""
    text: str = ""
    status: ToolStatus = "ok"
    exit_code: int | None = None
    digest: str = ""
    took_s: float | None = None
    data: bytes = b""


class FrameFault(Exception):
    """The other side broke a rule of this page, or a message is too large to send. Private to workspaces."""


def lost(request_id: int, text: str) -> RemoteAnswer:
    """The answer to a request that nobody can answer any more."""
    return RemoteAnswer(request_id, reason=LOST, text=text)


class FrameChannel:
    """One side's end of a connection. It owns both descriptors, reads in a thread and writes in another, so any thread
    may send. `heard` is called with each message, `ended` once with what was wrong ('' = the other side closed); both
    run in the reading thread, and `heard` may raise `FrameFault`."""

    def __init__(self, read: int, write: int, *, heard: Callable[[bytes], None], ended: Callable[[str], None]) -> None:
        self._read, self._write = read, write
        self._heard, self._ended = heard, ended
        self._buffer = bytearray()
        self._pinged_at = time.monotonic()
        self._writer = DaemonThreads(1)
        for descriptor in (read, write):
            os.set_blocking(descriptor, True)
        self._put(GREETING)
        threading.Thread(target=self._run, name="ramify frames", daemon=True).start()

    def send(self, message: RemoteRequest | RemoteAnswer) -> None:
        """Send a message soon. Raises `FrameFault` for one that is too large."""
        data = msgspec.msgpack.encode(message)
        if len(data) > MAX_FRAME_BYTES:
            raise FrameFault(f"a message holds {len(data)} bytes, and at most {MAX_FRAME_BYTES} can be sent at once")
        self._put(len(data).to_bytes(_LENGTH_BYTES, "big") + data)

    def close(self) -> None:
        """Write what is to be sent, then no more. The other side ends by that."""
        self._writer.submit(self._shut)

    def _run(self) -> None:
        fault = ""
        try:
            self._check_greeting()
            while (length := self._taken(_LENGTH_BYTES)) is not None:
                num_bytes = int.from_bytes(length, "big")
                if num_bytes > MAX_FRAME_BYTES:
                    raise FrameFault(f"it announced a message of {num_bytes} bytes; at most {MAX_FRAME_BYTES} are read")
                frame = self._taken(num_bytes) if num_bytes else b""
                if frame:
                    self._heard(frame)
        except FrameFault as error:
            fault = str(error)
        finally:
            os.close(self._read)
            self.close()
            self._ended(fault)

    def _check_greeting(self) -> None:
        """A login file that prints comes first, and everything it prints would be read as messages."""
        greeting = self._taken(len(GREETING))
        if greeting != GREETING:
            said = ((greeting or b"") + bytes(self._buffer)).partition(GREETING)[0][:MAX_SHOWN]
            if said:
                raise FrameFault(
                    f"it printed {said.decode(errors='replace')!r} before ramify could answer: let its login files "
                    "(such as ~/.bashrc) print in interactive shells only"
                )

    def _taken(self, num_bytes: int) -> bytes | None:
        """The next bytes; None = there is an end before them."""
        heard_at = time.monotonic()
        while len(self._buffer) < num_bytes:
            now = time.monotonic()
            if now - self._pinged_at >= PING_S:
                self._pinged_at = now
                self._put(bytes(_LENGTH_BYTES))
            if polled([self._read], PING_S):
                data = os.read(self._read, READ_BYTES)
                if not data:
                    return None
                self._buffer += data
                heard_at = time.monotonic()
            elif time.monotonic() - heard_at > SILENCE_S:
                raise FrameFault(f"it said nothing for {SILENCE_S:g} s")
        taken = bytes(self._buffer[:num_bytes])
        del self._buffer[:num_bytes]
        return taken

    def _put(self, data: bytes) -> None:
        self._writer.submit(self._written, data)

    def _written(self, data: bytes) -> None:
        view = memoryview(data)
        while view and self._write >= 0:
            try:
                view = view[os.write(self._write, view) :]
            except OSError:  # The other side is gone; the reading thread hears of it.
                self._shut()

    def _shut(self) -> None:
        if self._write >= 0:
            os.close(self._write)
            self._write = -1
