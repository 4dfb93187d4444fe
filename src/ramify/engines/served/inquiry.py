"""Inquiry: a question that many callers have at once. One asks; the others wait and get the same answer or error.

So if a server does not answer, everybody waits for one deadline, rather than for one after another.
"""

import asyncio
from collections.abc import Awaitable, Callable
from copy import copy

from ramify.core.errors import RamifyError


class Inquiry:
    """Calls `ask` until `is_settled`. If the caller that asks is cancelled, the next waiting one asks."""

    def __init__(self, ask: Callable[[], Awaitable[None]], *, is_settled: Callable[[], bool]) -> None:
        self._ask = ask
        self._is_settled = is_settled
        self._lock = asyncio.Lock()
        self._num_faults = 0
        self._fault: RamifyError | None = None

    async def settle(self) -> None:
        """Return when it is settled. All callers that waited for a call of `ask` get the error that it raised."""
        num_faults = self._num_faults
        if self._is_settled():
            return
        async with self._lock:
            if self._is_settled():
                return
            if self._fault is not None and self._num_faults > num_faults:
                raise copy(self._fault)
            try:
                await self._ask()
            except RamifyError as fault:
                self._num_faults += 1
                self._fault = fault
                raise
