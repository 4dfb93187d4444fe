"""Arrivals: when bytes came at a descriptor, told by a thread that does nothing else.

An event loop that is busy with something else reads late, so the time at which it reads says nothing of the sender. The
kernel wakes this thread whenever bytes come; it notes how many have come by then, and reads none of them. Where the
loop is quicker than the thread, the loop's own time is as good, and nothing may be noted.

Owns one thread and one epoll of a process, from the first watch on. Only Linux has both; elsewhere nothing is noted.
"""

import fcntl
import os
import select
import socket
import struct
import sys
import termios
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final

MAX_NOTED: Final = 1024
"""Most times that are kept of one descriptor. Without the oldest ones bytes seem to have come later."""
_INT: Final = struct.Struct("i")
_RECEIVED: Final = struct.Struct("=128xQ")
"""`tcpi_bytes_received` in Linux's `struct tcp_info`."""


class Arrival:
    """The times at which the bytes at one descriptor came. `close` it before the descriptor is closed."""

    def __init__(self, descriptor: int, num_arrived: Callable[[], int]) -> None:
        """Watch from now on. `num_arrived` counts all bytes that came so far; it is called in the thread, may count too
        few, and raises `OSError` or `ValueError` if it cannot count."""
        self._descriptor = descriptor
        self._num_arrived = num_arrived
        self._noted: deque[tuple[int, float]] = deque(maxlen=MAX_NOTED)
        _WATCH.add(descriptor, self)

    def at(self, num_bytes: int) -> float | None:
        """When the first `num_bytes` bytes were there, by `time.monotonic`; None = it was not noted. Forgets earlier
        times, so ask in rising order."""
        while self._noted and self._noted[0][0] < num_bytes:
            self._noted.popleft()
        return self._noted[0][1] if self._noted else None

    def close(self) -> None:
        """Watch no longer. Calling it again does nothing."""
        _WATCH.remove(self._descriptor, self)

    def note(self) -> None:
        """Note how many bytes there are now. Only the thread calls it.

        The time is taken after the count: a thread that is stopped in between notes bytes late, and none too early."""
        with suppress(OSError, ValueError):
            num_bytes = self._num_arrived()
            if num_bytes > (self._noted[-1][0] if self._noted else 0):
                self._noted.append((num_bytes, time.monotonic()))


class _Watch:
    """The thread and what it watches."""

    def __init__(self) -> None:
        self._arrivals: dict[int, Arrival] = {}
        self._lock = threading.Lock()
        self._epoll: select.epoll | None = None

    def add(self, descriptor: int, arrival: Arrival) -> None:
        if sys.platform != "linux":
            return
        with self._lock, suppress(OSError, ValueError):
            if self._epoll is None:
                self._epoll = select.epoll()
                threading.Thread(target=self._run, args=(self._epoll,), name="ramify arrivals", daemon=True).start()
            self._arrivals[descriptor] = arrival
            self._epoll.register(descriptor, select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLET)

    def remove(self, descriptor: int, arrival: Arrival) -> None:
        with self._lock, suppress(OSError, ValueError):
            if self._epoll is not None and self._arrivals.get(descriptor) is arrival:
                del self._arrivals[descriptor]
                self._epoll.unregister(descriptor)

    def forget(self) -> None:
        """Begin anew, in a process that was forked: it has no thread."""
        self._arrivals, self._lock, self._epoll = {}, threading.Lock(), None

    def _run(self, epoll: select.epoll) -> None:
        while True:
            for descriptor, _ in epoll.poll():
                if (arrival := self._arrivals.get(descriptor)) is not None:
                    arrival.note()


_WATCH: Final = _Watch()
os.register_at_fork(after_in_child=_WATCH.forget)


def num_unread(descriptor: int) -> int:
    """Bytes that wait at a socket or a pipe."""
    return _INT.unpack(fcntl.ioctl(descriptor, termios.FIONREAD, bytes(_INT.size)))[0]


def num_received(connection: socket.socket) -> int:
    """Bytes that came over a TCP connection so far, read or not. Raises `OSError` if the kernel does not count them."""
    told = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    if len(told) < _RECEIVED.size:
        raise OSError("this kernel does not count the bytes of a connection")
    return _RECEIVED.unpack_from(told)[0]
