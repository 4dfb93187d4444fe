"""Inquiry: a question that many have at once. One asks; the others wait, and hear the same answer or the same fault.

So a server that does not answer costs everybody one deadline, and not each in turn one more than the one before.
"""

import asyncio
from collections.abc import Awaitable, Callable
from copy import copy

from ramify.core.errors import RamifyError


class Inquiry:
    """Ask by `ask` until `is_settled`. Cancelled, the next one who waits asks."""

    def __init__(self, ask: Callable[[], Awaitable[None]], *, is_settled: Callable[[], bool]) -> None:
        self._ask = ask
        self._is_settled = is_settled
        self._lock = asyncio.Lock()
        self._num_faults = 0
        self._fault: RamifyError | None = None

    async def settle(self) -> None:
        """Return when it is settled. Raises what asking raised, to all who waited for it."""
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
