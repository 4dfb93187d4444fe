"""Outage: the time in which an engine's server is gone, as the requests of one engine see it.

Connections that are cut together are one outage. A request that was cut waits; one of the waiting requests looks for
the server after pauses that grow, and all go on when the server is found. A request that waits alone looks by trying
again. An outage costs no request a try. What is charged: the cut of a single request while the server is there, and
the cuts of a request that was in more than `MAX_LOSSES` outages, because it may be their cause. If the server is not
found in `max_down_s`, or goes down again and again before it has answered anything, every waiting request raises
`EnginesDown`. Invariant: while anybody waits, exactly one request looks.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

from ramify.core.engine import Request
from ramify.core.errors import EngineError, EnginesDown
from ramify.edge.retries import RetryPolicy, Tries, look_pause_s

CUT: Final = frozenset({"unreachable", "disconnected", "engine_silent"})
"""Failures of the connection or of the whole server, whatever the request is."""
MAX_LOSSES: Final = 3
"""Outages of which one request may be part at no cost (`Replicas` has the same number)."""
SAME_S: Final = 30.0
"""A server that is lost again this soon after it was found, and has answered nothing, was not back: it is the same
outage."""


@dataclass(slots=True, eq=False)
class RunningRequest:
    """A request that is running, and what happened to it so far."""

    request: Request
    policy: RetryPolicy
    is_unwanted: bool = False
    """Whether somebody aborted it."""
    began: float = 0.0
    """When its latest try began."""
    num_losses: int = 0
    """Outages that cut it."""
    woken: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a pause of it is over early."""
    last: EngineError | None = None
    """Why its latest try failed."""
    _outage: int = 0
    _num_answers: int = 0
    """Answers of the engine before the first outage that cut it."""
    _tries: Tries | None = None

    @property
    def tries(self) -> Tries:
        """Its tries so far. Few requests ever need them."""
        if self._tries is None:
            self._tries = Tries(self.policy, self.request.seed)
        return self._tries

    @property
    def left_s(self) -> float:
        """Seconds until the request's own deadline; 0 after it."""
        deadline = self.request.deadline
        return math.inf if deadline is None else max(0.0, deadline - asyncio.get_running_loop().time())

    def lose(self, outage: int, num_answers: int) -> None:
        """Count an outage that cut it, once."""
        if self._outage == outage:
            return
        self._num_answers = num_answers if not self.num_losses else self._num_answers
        self._outage, self.num_losses = outage, self.num_losses + 1

    def is_stuck(self, num_answers: int) -> bool:
        """Whether too many outages cut it, and nothing was answered between them."""
        return self.num_losses > MAX_LOSSES and self._num_answers == num_answers

    async def rest(self, pause_s: float) -> None:
        """Wait. Returns early if it is woken. Raises `EngineError` at its deadline."""
        self.woken.clear()
        if self.is_unwanted:
            return
        left_s = self.left_s
        try:
            async with asyncio.timeout(min(pause_s, left_s)):
                await self.woken.wait()
        except TimeoutError:
            if pause_s >= left_s:
                raise EngineError(
                    "deadline", f"reached before another try; the last try ended with {self.last}"
                ) from None


class Outage:
    """The outage of one engine, if there is one. Mutable. `look` returns whether the engine's server is there."""

    def __init__(self, policy: RetryPolicy, look: Callable[[], Awaitable[bool]]) -> None:
        self._policy = policy
        self._look = look
        self._number = 0
        self._num_answers = 0
        self._since: float | None = None
        """Since when the server has answered nothing; None = it has answered since the last outage."""
        self._found = -math.inf
        """When the requests of the last outage went on."""
        self._num_looks = 0
        self._was_missed = False
        """Whether a look, or a request that found nobody there, showed that the server was gone."""
        self._cut: set[RunningRequest] = set()
        """Requests that this outage cut."""
        self._waiting: dict[RunningRequest, bool] = {}
        """Request -> whether it found nobody there, or came when the server was known to be gone."""
        self._free: set[RunningRequest] = set()
        """Requests that went on at no cost."""
        self._looker: RunningRequest | None = None
        self._last: EngineError | None = None
        """The latest failure that made a request wait."""

    @property
    def is_known(self) -> bool:
        """Whether the server is known to be gone: new requests wait before their first try."""
        return bool(self._waiting) and self._was_missed

    @property
    def is_going_on(self) -> bool:
        """Whether more than one request was cut, or the server was missed, and it has answered nothing since."""
        now = asyncio.get_running_loop().time()
        is_same = self._since is not None and (bool(self._waiting) or now - self._found <= SAME_S)
        return is_same and self._is_shared

    @property
    def _is_shared(self) -> bool:
        return self._was_missed or len(self._cut) > 1

    def answered(self) -> None:
        """The server has answered a request."""
        self._num_answers += 1
        self._cut.intersection_update(self._waiting)
        self._since = asyncio.get_running_loop().time() if self._waiting else None

    def is_past(self, running: RunningRequest) -> bool:
        """Whether the failed try began before the end of an outage that is over: it belonged to that outage."""
        return not self._waiting and running.began < self._found

    async def until_over(self, running: RunningRequest) -> None:
        """Wait with a request that has not been tried yet. Returns and raises as `wait`."""
        assert self._last is not None
        await self.wait(running, EngineError("unreachable", self._last.detail or self._last.reason, is_retryable=True))

    async def wait(self, running: RunningRequest, error: EngineError) -> bool:
        """Wait until the server is found. Returns whether this costs `running` nothing. Returns early if the request is
        aborted. Raises `EngineError` at its deadline, and `EnginesDown`."""
        self._join(running, error)
        try:
            while running in self._waiting and not running.is_unwanted:
                if self._looker is None:
                    await self._look_out(running, error)
                else:
                    await running.rest(math.inf)
        finally:
            self._waiting.pop(running, None)
            is_free = running in self._free or running.is_unwanted
            self._free.discard(running)
        if is_free and running.is_stuck(self._num_answers):
            raise EnginesDown(
                error.reason, f"{error.detail}; it went down {running.num_losses} times and answered nothing in between"
            )
        return is_free and (running.num_losses <= MAX_LOSSES or error.reason == "unreachable")

    def _join(self, running: RunningRequest, error: EngineError) -> None:
        now = asyncio.get_running_loop().time()
        if self._since is None or (not self._waiting and now - self._found > SAME_S):
            self._since, self._num_looks, self._was_missed = now, 0, False
            self._number += 1
            self._cut.clear()
        self._last = running.last = error
        is_missing = error.reason == "unreachable"
        self._was_missed |= is_missing
        self._waiting[running] = is_missing
        if error.reason in CUT:
            self._cut.add(running)
        if not is_missing:
            running.lose(self._number, self._num_answers)

    async def _look_out(self, running: RunningRequest, error: EngineError) -> None:
        """Pause, and look for the server once."""
        self._looker = running
        try:
            pause_s = self._pause_s(running, error)
            await running.rest(pause_s)
            if running.is_unwanted:
                return
            if len(self._waiting) == 1 or await self._look():
                self._let_go()
            else:
                self._was_missed = True
        finally:
            self._looker = None
            for other in self._waiting:
                other.woken.set()

    def _pause_s(self, running: RunningRequest, error: EngineError) -> float:
        """Seconds before the next look. Raises `EnginesDown` after too long."""
        assert self._since is not None
        policy, now = self._policy, asyncio.get_running_loop().time()
        left_s = self._since + policy.max_down_s - now
        if left_s <= 0:
            raise EnginesDown(error.reason, f"{error.detail}; nothing has answered for {now - self._since:.0f} s")
        self._num_looks += 1
        pause_s = look_pause_s(self._num_looks, away_s=now - self._since, seed=running.request.seed, policy=policy)
        return min(left_s, pause_s)

    def _let_go(self) -> None:
        """The server is there: everybody goes on."""
        self._found = asyncio.get_running_loop().time()
        is_shared = self._is_shared
        for running, is_missing in self._waiting.items():
            if is_missing or self._was_missed or (is_shared and running in self._cut):
                self._free.add(running)
            running.woken.set()
        self._waiting.clear()
