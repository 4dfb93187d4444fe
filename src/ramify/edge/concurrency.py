"""Concurrency: how many requests one server has at once. No clock, no I/O.

First come, first served, at most `max_in_flight`. The limit follows the server's answers. A "busy" answer halves it,
once for all the requests that were in flight together; good answers let it grow again. As in TCP, it grows by one per
answer up to half of where the server was last found busy, so that a recovered server is soon fully used again. Above
that it grows by one per round of answers.
"""

import asyncio
from collections import deque


class ConcurrencyLimit:
    """Places for requests: `limit` now, at most `max_in_flight`."""

    def __init__(self, max_in_flight: int) -> None:
        self.limit = float(max_in_flight)
        self.num = 0
        """Places taken."""
        self._max = max_in_flight
        self._known_good = float(max_in_flight)
        """Below this the limit grows quickly."""
        self._era = 0
        self._has_grown = True
        """Whether there was a good answer since the limit was last halved."""
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def num_waiting(self) -> int:
        """Requests that wait for a place."""
        return sum(not turn.done() for turn in self._waiting)

    async def acquire(self) -> int:
        """Wait for a place and take it. Returns the era in which it was taken; pass it to `shrink`."""
        if self._waiting or self.num >= int(self.limit):
            turn = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self.release()
                raise
        else:
            self.num += 1
        return self._era

    def release(self) -> None:
        """Free a place."""
        self.num -= 1
        self._wake()

    def shrink(self, era: int) -> None:
        """The server answered "busy" to a request with a place of this era: halve the limit, to no less than 1. Many
        requests get this answer together; they count once per era."""
        if era != self._era:
            return
        self._era += 1
        half = max(1.0, min(self.limit, self.num) / 2)
        if self._has_grown:
            self._known_good = half
        self._has_grown = False
        self.limit = half

    def grow(self) -> None:
        """Raise the limit after a good answer."""
        self._has_grown = True
        step = 1.0 if self.limit < self._known_good else 1 / self.limit
        self.limit = min(float(self._max), self.limit + step)
        self._wake()

    def _wake(self) -> None:
        while self._waiting and self.num < int(self.limit):
            turn = self._waiting.popleft()
            if not turn.done():
                self.num += 1
                turn.set_result(None)
