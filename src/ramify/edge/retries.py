"""Retries: whether a request that failed is tried again, and when. No clock, no I/O: times are handed in.

Three kinds of failure, three accounts. A fault that may pass costs one of `max_tries` and one of the retries that the
engine's budget has; a server that is busy costs neither, but only so much time; an engine that cannot be reached costs
neither, but when nothing of it has answered for `max_down_s`, the run stops.
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
"""Longest pause that an engine is granted which asks for one."""
OWN_FAULTS: Final = frozenset({"http_500", "engine_500"})
"""Reasons that, given often enough to one request, are that request's own: vLLM and SGLang answer 500 where a logprob
cannot be written as JSON, each time (vllm-project/vllm #19661, sgl-project/sglang #5984)."""
WINDOW_S: Final = 60.0
"""Of the retry budget."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """When to give a call up and when to try again."""

    max_tries: int = 4
    """The first try included."""
    max_same_500: int = 3
    """Tries of one request that end with status 500, the first included."""
    base_s: float = 0.5
    """Longest pause before the second try; it doubles each time (full jitter)."""
    cap_s: float = 30.0
    max_busy_s: float = 600.0
    """How long a request waits, in all, for servers that say they are busy."""
    max_down_s: float = 300.0
    """How long requests wait for an engine that cannot be reached, before the run stops."""
    max_retry_share: float = 0.1
    """Retries of a minute, of its requests: a dying engine is not hammered (Finagle: RetryBudget, 20 %)."""
    min_retries: int = 10
    """Retries of a minute that are allowed however few its requests are (Finagle: 10 a second)."""
    abort_grace_s: float = 2.0
    """How long an engine that was told to end a request may take to return what it had."""
    patience: Patience = PATIENCE
    """How long a try may take; kept by whoever stands closest to the server."""

    def __post_init__(self) -> None:
        times = (self.base_s, self.cap_s, self.max_busy_s, self.max_down_s, self.abort_grace_s)
        if self.max_tries < 1 or self.max_same_500 < 1 or not all(0 <= seconds < math.inf for seconds in times):
            raise ConfigError(f"impossible retry policy {self!r}: at least 1 try, every value finite and not negative")
        if not 0 <= self.max_retry_share <= 1 or self.min_retries < 0:
            raise ConfigError(f"impossible retry policy {self!r}: max_retry_share is a share, min_retries 0 or more")


POLICY: Final = RetryPolicy()


@dataclass(slots=True, eq=False)
class Tries:
    """What became of one request so far. Mutable; one a request."""

    policy: RetryPolicy
    seed: int
    """Of the request: its pauses follow from it."""
    faults: Counter[str] = field(default_factory=Counter[str])
    """Reason -> tries that it cost."""
    busy_s: float = 0.0
    """Pauses so far because a server was busy."""
    num_in_a_row: int = 0
    """Waits since the last fault that cost a try."""

    def pause_s(self, reason: str) -> float | None:
        """Seconds to wait after a fault that costs a try; None = there are no tries left."""
        self.faults[reason] += 1
        self.num_in_a_row = 0
        is_own = reason in OWN_FAULTS and self.faults[reason] >= self.policy.max_same_500
        if is_own or self.faults.total() >= self.policy.max_tries:
            return None
        return self._drawn(self.faults.total())

    def busy_pause_s(self, wanted_s: float) -> float | None:
        """Seconds to wait for an engine that is busy and asks for `wanted_s`; None = it was waited for too long."""
        self.num_in_a_row += 1
        pause = max(min(wanted_s, MAX_PAUSE_S), self._drawn(self.num_in_a_row))
        self.busy_s += pause
        return pause if self.busy_s <= self.policy.max_busy_s else None

    def down_pause_s(self, down_since: float, now: float) -> float | None:
        """Seconds to wait for an engine that has not been reached since then; None = for too long."""
        self.num_in_a_row += 1
        left = down_since + self.policy.max_down_s - now
        return min(self._drawn(self.num_in_a_row), left) if left > 0 else None

    def _drawn(self, number: int) -> float:
        return backoff_s(number, seed=self.seed, base_s=self.policy.base_s, cap_s=self.policy.cap_s)


class RetryBudget:
    """Retries that an engine may be asked for: a share of the last minute's requests, or a few where those are few."""

    def __init__(self, max_share: float, min_retries: int) -> None:
        self._max_share = max_share
        self._min_retries = min_retries
        self._requests: deque[float] = deque()
        self._retries: deque[float] = deque()

    def count(self, now: float) -> None:
        """A request begins."""
        self._requests.append(now)
        self._forget(now)

    def take(self, now: float) -> bool:
        """Take one retry, if there is one."""
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
    """Seconds to wait the `number`-th time: uniform up to a limit that doubles; the same for the same seed."""
    return doubled_s(number, base_s=base_s, cap_s=cap_s) * child_seed(seed, number, JITTER_DRAW) / 2**64


def doubled_s(number: int, *, base_s: float, cap_s: float) -> float:
    """`base_s` the first time, twice as much each time after that, and never more than `cap_s`."""
    return min(cap_s, base_s * 2.0 ** min(number - 1, 60))


def too_many_retries(error: EngineError) -> EngineError:
    """`error`, not tried again because too much has been."""
    return EngineError(
        error.reason,
        f"{error.detail}; not tried again, because too many of the last minute's requests were retries",
        is_retryable=True,
    )
