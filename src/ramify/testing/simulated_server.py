"""SimulatedServer: one model server that batches continuously. No asyncio, no clock, no tokens of its own.

The caller passes the time and calls `advance` when something is `due`. One step samples one token of every sequence in
the batch and takes `step_s + sequence_s * batch + kv_token_s * tokens held by the batch` seconds. A context that joins
adds `join_s`, and `prefill_token_s` for each of its tokens that is not cached. Sequences join first come, first served,
and join and leave only between two steps; a withdrawn sequence leaves after the current step. Steps in which no
sequence joins or leaves are computed in one jump, so the work grows with the number of requests, not of tokens.

Not modelled: running out of memory for keys and values (waiting sequences are not swapped, running ones not preempted),
contexts computed in chunks, the network.
"""

import heapq
import math
from bisect import bisect_left, bisect_right
from collections import deque
from dataclasses import dataclass, fields
from typing import Literal

import numpy as np

from ramify.core.errors import ConfigError
from ramify.core.segment import Ids_T
from ramify.testing.prefixes import KnownPrefixes


@dataclass(frozen=True, slots=True)
class SimulatedCosts:
    """The cost of a step, in seconds. The defaults are assumed, not measured: a 7 B model in 16 bits with grouped-query
    attention on one data-centre GPU (15 GB of weights a step, 57 kB of keys and values a token)."""

    step_s: float = 6e-3
    """For each step: the weights are read once for the whole batch."""
    sequence_s: float = 27e-6
    """Added for each sequence of the batch."""
    kv_token_s: float = 44e-9
    """Added for each token whose keys and values are read."""
    prefill_token_s: float = 30e-6
    """Added for each context token that is computed."""
    join_s: float = 0.0
    """Added for each sequence that joins, besides its tokens."""

    def __post_init__(self) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            if not 0 <= value < math.inf:
                raise ConfigError(f"{f.name} = {value!r}: a cost is a number of seconds, 0 or more")

    def steps_s(self, num_steps: int, *, batch: int, held: int) -> float:
        """Seconds of `num_steps` steps with the same `batch` sequences, which hold `held` tokens at the first step."""
        num_read = kv_read(num_steps, batch=batch, held=held)
        return num_steps * (self.step_s + self.sequence_s * batch) + self.kv_token_s * num_read


def kv_read(num_steps: int, *, batch: int, held: int) -> int:
    """Keys and values read by `num_steps` steps. Each sequence holds one token more after each step."""
    return num_steps * held + batch * (num_steps * (num_steps - 1) // 2)


@dataclass(slots=True)
class ServerStats:
    """What a server has done so far. Mutable; read it at any time."""

    num_steps: int = 0
    num_decoded: int = 0
    """Tokens sampled, including those of withdrawn requests."""
    num_read: int = 0
    """Keys and values read, in tokens."""
    prefill_cached: int = 0
    """Context tokens whose keys and values an earlier request had left."""
    prefill_uncached: int = 0
    """Context tokens computed."""
    peak_batch: int = 0
    """Most sequences that ran at once."""
    busy_s: float = 0.0
    """Seconds in which at least one sequence ran."""

    @property
    def mean_batch(self) -> float:
        """Tokens sampled per step."""
        return self.num_decoded / max(1, self.num_steps)


@dataclass(slots=True, eq=False)
class Job:
    """One request: the ids of its context, and the ids it will have sampled at its end."""

    context: Ids_T
    sampled: Ids_T
    state: Literal["waiting", "running", "over"] = "waiting"
    first_step: int = 0
    """Number of steps the server had made when it joined."""
    num_cached: int = 0
    """Context tokens that were cached when it joined."""


class SimulatedServer:
    """One server. Mutated by `submit`, `withdraw` and `advance`. Times are seconds of one clock that never goes back
    while there is anything to do."""

    def __init__(self, costs: SimulatedCosts, *, max_batch: int, prefixes: KnownPrefixes) -> None:
        if max_batch < 1:
            raise ConfigError(f"max_batch = {max_batch!r}: at least 1 sequence runs at once")
        self.stats = ServerStats()
        self._costs = costs
        self._max_batch = max_batch
        self._prefixes = prefixes
        self._waiting: deque[Job] = deque()
        self._running: set[Job] = set()
        self._leaving: set[Job] = set()
        """Withdrawn jobs that still run: they stay until the current step is over."""
        self._ends: list[tuple[int, int, Job]] = []
        """Heap of (number of steps after which it is over, order of joining, job). It may still hold withdrawn jobs."""
        self._num_joined = 0
        self._held = 0
        """Tokens the running sequences hold."""
        self._began = 0.0
        """When the current steps began. The batch has not changed since then."""
        self._prefill_s = 0.0
        """Seconds of the first current step that compute contexts."""
        self._planned = 0
        """Steps from `_began` until a sequence may join or leave."""

    @property
    def due(self) -> float | None:
        """When `advance` must be called next; None = there is nothing to do."""
        return self._end_of(self._planned) if self._running or self._waiting else None

    @property
    def least_s(self) -> float:
        """Seconds that the work so far would have taken with every step full. No schedule can take less."""
        stats, costs = self.stats, self._costs
        return (
            stats.num_decoded * (costs.step_s / self._max_batch + costs.sequence_s)
            + stats.num_read * costs.kv_token_s
            + stats.prefill_uncached * costs.prefill_token_s
            + self._num_joined * costs.join_s
        )

    def submit(self, job: Job, now: float) -> None:
        """Let `job` join the batch as soon as there is room between two steps."""
        if not self._running and not self._waiting:
            self._began, self._planned = now, 0
        self._waiting.append(job)
        if len(self._running) < self._max_batch:
            self._stop_early(now)

    def num_sampled(self, job: Job, now: float) -> int:
        """Tokens that `job` has sampled in steps that are over by `now`."""
        if job.state == "waiting":
            return 0
        num_over = bisect_right(range(1, self._planned + 1), now, key=self._end_of)
        return min(len(job.sampled), self.stats.num_steps + num_over - job.first_step)

    def forget(self) -> None:
        """Clear the cache, because the weights have changed."""
        self._prefixes.clear()

    def withdraw(self, job: Job, now: float) -> None:
        """Stop a job that nobody waits for any more. A job that is over stays unchanged."""
        match job.state:
            case "waiting":
                self._waiting.remove(job)
                job.state = "over"
            case "running":
                self._leaving.add(job)
                self._stop_early(now)
                if self._leaving == self._running and not self._waiting:
                    self.advance()
            case "over":
                pass

    def advance(self) -> list[Job]:
        """Pass to the end of the planned steps and change the batch. Returns the jobs that are finished then."""
        self._pass(self._planned)
        for job in self._leaving:
            self._leave(job)
        self._leaving.clear()
        finished = self._finished()
        for job in finished:
            self._prefixes.add(np.concatenate([job.context, job.sampled[:-1]]))
            self._leave(job)
        self._join()
        self._planned = self._ends[0][0] - self.stats.num_steps if self._ends else 0
        return finished

    def _finished(self) -> list[Job]:
        """Jobs whose last step is over. Removes withdrawn ones from the front of the heap."""
        finished: list[Job] = []
        while self._ends and (self._ends[0][2].state == "over" or self._ends[0][0] <= self.stats.num_steps):
            job = heapq.heappop(self._ends)[2]
            if job.state == "running":
                finished.append(job)
        return finished

    def _end_of(self, num_steps: int) -> float:
        """When the first `num_steps` of the current steps are over."""
        if not num_steps:
            return self._began
        seconds = self._costs.steps_s(num_steps, batch=len(self._running), held=self._held)
        return self._began + self._prefill_s + seconds

    def _stop_early(self, now: float) -> None:
        """Shorten the plan: it ends with the step that is running at `now`."""
        self._planned = min(self._planned, 1 + bisect_left(range(1, self._planned), now, key=self._end_of))

    def _pass(self, num_steps: int) -> None:
        if not num_steps:
            return
        batch, end = len(self._running), self._end_of(num_steps)
        self.stats.num_steps += num_steps
        self.stats.num_decoded += num_steps * batch
        self.stats.num_read += kv_read(num_steps, batch=batch, held=self._held)
        self.stats.busy_s += end - self._began
        self._held += num_steps * batch
        self._began, self._prefill_s = end, 0.0

    def _join(self) -> None:
        while self._waiting and len(self._running) < self._max_batch:
            job = self._waiting.popleft()
            job.state, job.first_step = "running", self.stats.num_steps
            job.num_cached = self._prefixes.num_known(job.context)
            self._prefixes.add(job.context)
            num_uncached = len(job.context) - job.num_cached
            self.stats.prefill_cached += job.num_cached
            self.stats.prefill_uncached += num_uncached
            self._prefill_s += self._costs.join_s + self._costs.prefill_token_s * num_uncached
            self._held += len(job.context)
            self._running.add(job)
            self.stats.peak_batch = max(self.stats.peak_batch, len(self._running))
            heapq.heappush(self._ends, (job.first_step + len(job.sampled), self._num_joined, job))
            self._num_joined += 1

    def _leave(self, job: Job) -> None:
        self._running.remove(job)
        self._held -= len(job.context) + self.stats.num_steps - job.first_step
        job.state = "over"
