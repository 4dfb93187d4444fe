"""Progress: decides whether a server still works from what it returns.

It does not trust a server's health route: that returns 200 even if the scheduler behind it is dead (sgl-project/sglang
#6624, vllm-project/vllm #16259). Its clock counts the seconds since an answer came, or since the server's count of
sampled tokens rose. After `silent_s`, and later if long contexts are in flight, it asks for one token. If none comes,
everything in flight fails with `engine_silent`. It watches only while something is in flight. A server that was paused
on purpose does not count as silent.
"""

import asyncio
import math
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from ramify.core.errors import EngineError

PROBE_S: Final = 20.0
"""Timeout for one token from a suspected server (sglang: SGLANG_HEALTH_CHECK_TIMEOUT)."""


@dataclass(slots=True, eq=False)
class ServedFlight:
    """One request in flight to a server."""

    num_context: int
    """Tokens of its context: the time allowed before its first token grows with them."""
    _scope: asyncio.Timeout
    error: EngineError | None = None
    """Why it was ended from outside; None = it was not."""
    is_over: bool = False

    def fail(self, error: EngineError, *, after_s: float = 0.0) -> None:
        """End it with `error`, unless it has ended or ends by itself within `after_s`."""
        if not self.is_over and not self._scope.expired():
            self.error = error
            self._scope.reschedule(asyncio.get_running_loop().time() + after_s)


class Progress:
    """The clock of one server. `probe` asks for one token and raises `EngineError` if none comes. `count` returns the
    server's count of sampled tokens so far; None = it has none."""

    def __init__(
        self,
        *,
        silent_s: float,
        prefill_s: float,
        probe: Callable[[float], Awaitable[None]],
        count: Callable[[], Awaitable[float | None]],
    ) -> None:
        self._silent_s = silent_s
        self._prefill_s = prefill_s
        self._probe = probe
        self._count = count
        self._counted: float | None = None
        self._last = -math.inf
        self._flights: set[ServedFlight] = set()
        self._task: asyncio.Task[None] | None = None
        self._is_paused = False

    @property
    def num_in_flight(self) -> int:
        return len(self._flights)

    @property
    def since_s(self) -> float:
        """Seconds since something came back."""
        return asyncio.get_running_loop().time() - self._last

    def beat(self) -> None:
        """Something came back."""
        self._last = asyncio.get_running_loop().time()

    def pause(self) -> None:
        """Expect no answers until `resume`."""
        self._is_paused = True

    def resume(self) -> None:
        self._is_paused = False
        self.beat()

    @asynccontextmanager
    async def watched(self, num_context: int) -> AsyncIterator[ServedFlight]:
        """Watch a request with `num_context` tokens of context.

        Raises the `EngineError` that the request is failed with: `engine_silent` when the server is found silent.
        """
        if not self._flights:
            self.beat()
        scope = asyncio.timeout(None)
        flight = ServedFlight(num_context, scope)
        try:
            async with scope:
                self._flights.add(flight)
                self._ensure_watching()
                try:
                    yield flight
                finally:
                    self._flights.remove(flight)
                    flight.is_over = True
        except TimeoutError:
            if flight.error is None:
                raise
            raise flight.error from None

    async def is_working(self) -> bool:
        """Whether something came back within `silent_s`; if not, whether one token comes."""
        if self._is_paused or self.since_s < self._silent_s:
            return True
        return await self._answers()

    async def close(self) -> None:
        task, self._task = self._task, None
        if task is not None and not task.done():
            task.cancel()
            await asyncio.wait([task])

    def _ensure_watching(self) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._watch(), name="ramify progress clock")

    async def _watch(self) -> None:
        """Look every third of `silent_s`, so that a count that stands still has been read more than once."""
        while self._flights:
            await asyncio.sleep(self._silent_s / 3)
            if self._is_paused or self.since_s < self._silent_s / 3 or await self._has_risen():
                continue
            if self.since_s >= self._silent_s + self._longest_prefill_s and not await self._answers():
                self._fail_all()

    async def _has_risen(self) -> bool:
        """Whether the server has sampled since its count was last read; if so, this counts as an answer."""
        before, self._counted = self._counted, await self._count()
        has_risen = before is not None and self._counted is not None and self._counted > before
        if has_risen:
            self.beat()
        return has_risen

    async def _answers(self) -> bool:
        """Whether one token comes, or any other answer meanwhile."""
        last = self._last
        try:
            await self._probe(PROBE_S + self._longest_prefill_s)
        except EngineError:
            return self._last > last
        self.beat()
        return True

    def _fail_all(self) -> None:
        told = f"nothing came back for {self.since_s:.0f} s, and no token when one was asked for"
        for flight in self._flights:
            flight.fail(EngineError("engine_silent", told, is_retryable=True))

    @property
    def _longest_prefill_s(self) -> float:
        return self._prefill_s * max((flight.num_context for flight in self._flights), default=0)


def counted(metrics: bytes, name: str) -> float | None:
    """Sum of a counter over the lines of a Prometheus page; None = the page has no such counter."""
    page = metrics.decode(errors="replace")
    found = re.findall(rf"^{re.escape(name)}(?:\{{[^}}]*\}})? (\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)\b", page, re.MULTILINE)
    return sum(map(float, found)) if found else None
