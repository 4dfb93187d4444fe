"""Capture: the output of a step, read from a pipe by the event loop, in bounded memory.

Keeps the head and the tail. It keeps reading after that, so a full pipe blocks nobody, and reports when the output
exceeds the limit for killing. It never waits for the process that holds the other end.
"""

import asyncio
import os
from collections.abc import Callable
from typing import Final

CHUNK_BYTES: Final = 1 << 16
MAX_READS_AT_END: Final = 32
"""More than a pipe can hold. A process that keeps writing is not waited for."""


class Capture:
    """A pipe and what came through it. `written` is the end to hand over; `on_flood` is called once, above
    `killed_bytes`."""

    def __init__(self, *, max_bytes: int, killed_bytes: int, on_flood: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._read, self.written = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._read, False)
        self._max_half = max(1, max_bytes // 2)
        self._killed_bytes = killed_bytes
        self._on_flood = on_flood
        self._head = bytearray()
        self._tail = bytearray()
        self._is_open = True
        self.num_bytes = 0
        self._loop.add_reader(self._read, self._take)

    def close_written(self) -> None:
        """Close the host's copy of the end that was handed over."""
        if self.written >= 0:
            os.close(self.written)
            self.written = -1

    def close(self) -> None:
        """Read what is in the pipe now and close it. Calling it again is harmless."""
        self.close_written()
        if self._is_open:
            for _ in range(MAX_READS_AT_END):
                if not self._is_open or not self._take():
                    break
            self._hang_up()

    @property
    def text(self) -> str:
        """All of the output, or its head and tail with a note between them."""
        if self.num_bytes <= 2 * self._max_half:
            return (self._head + self._tail).decode("utf-8", errors="replace")
        note = f"\n[… {self.num_bytes} bytes in all, cut to {2 * self._max_half} …]\n"
        tail = self._tail[-self._max_half :]
        return self._head.decode("utf-8", errors="replace") + note + tail.decode("utf-8", errors="replace")

    def _take(self) -> bool:
        """Read once; False = there is nothing now."""
        try:
            chunk = os.read(self._read, CHUNK_BYTES)
        except BlockingIOError:
            return False
        if not chunk:
            self._hang_up()
            return False
        self._keep(chunk)
        return True

    def _keep(self, chunk: bytes) -> None:
        was_within = self.num_bytes <= self._killed_bytes
        self.num_bytes += len(chunk)
        room = self._max_half - len(self._head)
        if room > 0:
            self._head += chunk[:room]
            chunk = chunk[room:]
        self._tail += chunk
        if len(self._tail) > 2 * self._max_half + CHUNK_BYTES:
            del self._tail[: -self._max_half]
        if was_within and self.num_bytes > self._killed_bytes:
            self._on_flood()

    def _hang_up(self) -> None:
        if self._is_open:
            self._is_open = False
            self._loop.remove_reader(self._read)
            os.close(self._read)
