"""Channel: the host's end of one node's socket.

Reads whole messages, with the sender's pid as reported by the kernel. An unexpected byte or a closed socket means that
the node is lost: `on_lost` is called once, and nothing more is read.
"""

import array
import asyncio
import os
import socket
import struct
from collections.abc import Callable, Sequence
from typing import Final

from ramify.edge.arrivals import Arrival, num_unread
from ramify.sandbox.protocol import LENGTH_BYTES

_CREDENTIALS: Final = struct.Struct("3i")
_ANCILLARY_BYTES: Final = socket.CMSG_SPACE(_CREDENTIALS.size) + socket.CMSG_SPACE(8 * array.array("i").itemsize)
_READ_BYTES: Final = 256


class Broken(Exception):
    """The other side is gone, or sent something unexpected. Private to the sandbox."""


class Channel:
    """A pair of connected sockets. `peer` is the end to hand over; it is closed here afterwards."""

    def __init__(self, *, max_descriptors: int = 0) -> None:
        self._loop = asyncio.get_running_loop()
        self._own, self.peer = socket.socketpair()
        self._own.setblocking(False)
        self._own.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._received = bytearray()
        self._max_descriptors = max_descriptors
        self._num_read = 0
        self._waiter: asyncio.Future[None] | None = None
        self._is_open = True
        self.sender_pid = 0
        """Sender of the last message, in this process's pid namespace."""
        self.descriptors: list[int] = []
        """Descriptors that were received and not taken yet."""
        self.num_expected = 0
        """Number of bytes that may still come."""
        self.on_lost: Callable[[], None] = lambda: None
        self._loop.add_reader(self._own, self._take)

    @property
    def is_open(self) -> bool:
        return self._is_open

    def watched(self) -> Arrival:
        """The times at which its bytes come from now on. Whoever takes it closes it before the channel."""
        descriptor = self._own.fileno()
        return Arrival(descriptor, lambda: self._num_read + num_unread(descriptor))

    async def message(self, length: int) -> bytes:
        """The next `length` bytes. Raises `Broken`. Only one caller at a time; the caller sets the deadline."""
        while len(self._received) < length:
            if not self._is_open:
                raise Broken
            self._waiter = self._loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        message = bytes(self._received[:length])
        del self._received[:length]
        return message

    def look(self) -> None:
        """Read what is there now, so that an end is noticed before the event loop reports it."""
        if self._is_open:
            self._take()

    def taken(self) -> list[int]:
        """The descriptors received so far; the caller now owns them."""
        taken, self.descriptors = self.descriptors, []
        return taken

    async def send(self, framed: bytes, descriptors: Sequence[int] = ()) -> None:
        """Send everything; the descriptors go with the first bytes. Raises `Broken`."""
        if not self._is_open:
            raise Broken
        try:
            if descriptors:
                socket.send_fds(self._own, [framed[:LENGTH_BYTES]], list(descriptors))
                framed = framed[LENGTH_BYTES:]
            await self._loop.sock_sendall(self._own, framed)
        except OSError as error:
            raise Broken from error

    def close(self) -> None:
        """Close the socket. Calling it again is harmless."""
        self.peer.close()
        if self._is_open:
            self._is_open = False
            self._loop.remove_reader(self._own)
            self._own.close()
            for descriptor in self.descriptors:
                os.close(descriptor)
            self._wake()

    def _take(self) -> None:
        try:
            chunk, ancillary, _, _ = self._own.recvmsg(_READ_BYTES, _ANCILLARY_BYTES, socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return
        except OSError:
            chunk, ancillary = b"", []
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                numbers = array.array("i")
                numbers.frombytes(data[: len(data) - len(data) % numbers.itemsize])
                self.descriptors += numbers
            elif level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS:
                self.sender_pid = _CREDENTIALS.unpack(data[: _CREDENTIALS.size])[0]
        self._num_read += len(chunk)
        self._received += chunk[: max(0, self.num_expected)]
        self.num_expected -= len(chunk)
        if not chunk or self.num_expected < 0 or len(self.descriptors) > self._max_descriptors:
            self._lose()
        else:
            self._wake()

    def _lose(self) -> None:
        """Close and call `on_lost`. A waiting reader still gets what was received before."""
        self.close()
        lost, self.on_lost = self.on_lost, lambda: None
        lost()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
