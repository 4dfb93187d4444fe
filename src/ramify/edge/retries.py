"""Retries: whether a failed request is retried, and when. No clock, no I/O: the caller passes times in.

There are three kinds of failure. A fault that may pass costs one of `max_tries` and one retry of the engine's budget. A
busy server costs neither, but the total wait for it is limited. An engine whose server is gone (`engines/outage.py`)
costs neither, but if it has answered nothing for `max_down_s`, the run stops.
"""

import math
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Final

from ramify.core.errors import ConfigError, EngineError
from ramify.core.seeds import child_seed
from ramify.edge.patience import PATIENCE, Patience

JITTER_DRAW = (1 << 40) + 2
MAX_PAUSE_S: Final = 60.0
"""Longest pause that an engine may ask for."""
OWN_FAULTS: Final = frozenset({"http_500", "engine_500"})
"""Reasons that are caused by a request itself if that request gets them often enough: vLLM and SGLang always answer 500
if a logprob cannot be written as JSON (vllm-project/vllm #19661, sgl-project/sglang #5984)."""
WINDOW_S: Final = 60.0
"""Window of the retry budget."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """When to stop waiting for a call, and when to retry."""

    max_tries: int = 4
    """Most tries of one request, the first included."""
    max_same_500: int = 3
    """Tries of one request that end with status 500, including the first."""
    base_s: float = 0.5
    """Longest pause before the second try; it doubles with each further try (full jitter)."""
    cap_s: float = 30.0
    """Longest pause before any try, in seconds."""
    max_busy_s: float = 600.0
    """How long a request waits in total for servers that say they are busy."""
    max_down_s: float = 300.0
    """How long requests wait for an engine that cannot be reached before the run stops."""
    max_retry_share: float = 0.1
    """Maximum retries per minute, as a share of that minute's requests, so that a failing engine is not overloaded
    (Finagle: RetryBudget, 20 %)."""
    min_retries: int = 10
    """Retries per minute that are always allowed, however few requests there are (Finagle: 10 per second)."""
    abort_grace_s: float = 2.0
    """How long an engine that was told to end a request may take to return what it had."""
    patience: Patience = PATIENCE
    """How long a try may take; the layer closest to the server enforces it."""

    def __post_init__(self) -> None:
        times = (self.base_s, self.cap_s, self.max_busy_s, self.max_down_s, self.abort_grace_s)
        if self.max_tries < 1 or self.max_same_500 < 1 or not all(0 <= seconds < math.inf for seconds in times):
            raise ConfigError(f"impossible retry policy {self!r}: at least 1 try, every value finite and not negative")
        if not 0 <= self.max_retry_share <= 1 or self.min_retries < 0:
            raise ConfigError(f"impossible retry policy {self!r}: max_retry_share is a share, min_retries 0 or more")


POLICY: Final = RetryPolicy()


@dataclass(slots=True, eq=False)
class Tries:
    """The tries of one request so far. Mutable; one object per request."""

    policy: RetryPolicy
    seed: int
    """The request's seed; its pauses depend on it."""
    faults: Counter[str] = field(default_factory=Counter[str])
    """Reason -> tries that it cost."""
    busy_s: float = 0.0
    """Total pauses so far because a server was busy, in seconds."""
    num_in_a_row: int = 0
    """Waits since the last fault that cost a try."""

    def pause_s(self, reason: str) -> float | None:
        """Seconds to wait after a fault that costs a try; None = no tries are left."""
        self.faults[reason] += 1
        self.num_in_a_row = 0
        is_own = reason in OWN_FAULTS and self.faults[reason] >= self.policy.max_same_500
        if is_own or self.faults.total() >= self.policy.max_tries:
            return None
        return self._drawn(self.faults.total())

    def busy_pause_s(self, wanted_s: float) -> float | None:
        """Seconds to wait for a busy engine that asks for `wanted_s`; None = the total wait would be too long."""
        self.num_in_a_row += 1
        pause = max(min(wanted_s, MAX_PAUSE_S), self._drawn(self.num_in_a_row))
        self.busy_s += pause
        return pause if self.busy_s <= self.policy.max_busy_s else None

    def _drawn(self, number: int) -> float:
        return backoff_s(number, seed=self.seed, base_s=self.policy.base_s, cap_s=self.policy.cap_s)


class RetryBudget:
    """Limits the retries of one engine: a share of the last minute's requests, or a few if there are few requests."""

    def __init__(self, max_share: float, min_retries: int) -> None:
        self._max_share = max_share
        self._min_retries = min_retries
        self._requests: deque[float] = deque()
        self._retries: deque[float] = deque()

    def count(self, now: float) -> None:
        """Count a request that begins."""
        self._requests.append(now)
        self._forget(now)

    def take(self, now: float) -> bool:
        """Take one retry; False = none is left."""
        self._forget(now)
        if len(self._retries) >= max(self._min_retries, self._max_share * len(self._requests)):
            return False
        self._retries.append(now)
        return True

    def _forget(self, now: float) -> None:
        for times in (self._requests, self._retries):
            while times and times[0] <= now - WINDOW_S:
                times.popleft()


def backoff_s(number: int, *, seed: int, base_s: float, cap_s: float) -> float:
    """Seconds to wait the `number`-th time: uniform up to a limit that doubles. The same seed gives the same value."""
    return doubled_s(number, base_s=base_s, cap_s=cap_s) * child_seed(seed, number, JITTER_DRAW) / 2**64


def look_pause_s(number: int, *, away_s: float, seed: int, policy: RetryPolicy) -> float:
    """Seconds before the `number`-th look for a server that has been gone for `away_s`: half to all of a quarter of
    that time, of `base_s` at least and of `cap_s` at most. So an outage costs little more than its own length."""
    longest_s = min(policy.cap_s, max(policy.base_s, away_s / 4))
    return longest_s * (0.5 + 0.5 * child_seed(seed, number, JITTER_DRAW) / 2**64)


def doubled_s(number: int, *, base_s: float, cap_s: float) -> float:
    """`base_s` the first time, doubling each time after that, and never more than `cap_s`."""
    return min(cap_s, base_s * 2.0 ** min(number - 1, 60))


def too_many_retries(error: EngineError, policy: RetryPolicy) -> EngineError:
    """`error` with a note that it was not retried because the retry budget is used up."""
    return EngineError(
        error.reason,
        f"{error.detail}; not tried again, because too many of the last minute's requests were retries "
        f"(engine.retry.max_retry_share = {policy.max_retry_share:g})",
        is_retryable=True,
    )
