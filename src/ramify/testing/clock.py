"""Virtual time for asyncio: delays, deadlines and timeouts that are exact and take no real time.

`run_virtual` runs a coroutine on a loop whose clock starts at 0 and stands still while anything can run. When nothing
can run, it jumps to the next timer. So a day of waiting is simulated at once, and durations can be compared with `==`.

Threads are allowed through `run_in_executor` and `asyncio.to_thread`: the clock stands still while a thread works. Real
I/O is refused when it is registered. If every task waits and no timer or thread can wake one, the run ends with
`Deadlock`, which lists the tasks, instead of hanging.
"""

import asyncio
import heapq
import selectors
from asyncio.events import TimerHandle
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from contextvars import Context
from typing import Any, TypeVar

from ramify.core.errors import ContractError, RamifyError

T = TypeVar("T")

MAX_THREAD_S = 30.0
"""Real seconds after which a thread that has not answered is treated as hanging."""
ROUNDING_S = 1e-6
"""`now + (when - now)` is not always `when`, so a jump ends exactly on a timer within this distance."""


class Deadlock(RamifyError):
    """Every task waits for something that will never come."""


def run_virtual(main: Coroutine[Any, Any, T]) -> T:
    """Run `main` in virtual time and return its result. Raises `Deadlock`, or what `main` raises."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose `time()` is virtual."""

    def __init__(self) -> None:
        self._now = 0.0
        self._times: list[float] = []
        """Heap of the times of all future timers, including cancelled ones."""
        self._num_threads = 0
        super().__init__(_JumpingSelector(self._pass_time))

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._now

    def call_at(
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> TimerHandle:
        """Set a timer. All timers of asyncio are set here; the exact time is kept so that jumps end on it."""
        heapq.heappush(self._times, when)
        return super().call_at(when, callback, *args, context=context)

    def run_in_executor(self, executor: Executor | None, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:
        """As in asyncio, but the clock stands still until the thread has answered or its future is cancelled."""
        future = super().run_in_executor(executor, func, *args)
        self._num_threads += 1
        future.add_done_callback(self._thread_answered)
        return future

    async def shutdown_default_executor(self, *args: Any) -> None:
        """As in asyncio, but the clock stands still until the executor's thread has ended."""
        self._num_threads += 1
        try:
            await super().shutdown_default_executor(*args)
        finally:
            self._num_threads -= 1

    def _thread_answered(self, _: asyncio.Future[Any]) -> None:
        self._num_threads -= 1

    def _pass_time(self, timeout: float | None) -> float:
        """Nothing can run for `timeout` seconds (None = for ever): jump ahead. Returns the real seconds to wait."""
        if self._num_threads:
            return MAX_THREAD_S
        if timeout is None:
            raise Deadlock(f"at {self._now} virtual seconds nothing can run and no timer is set; {self._waiting()}")
        end = self._now + timeout
        while self._times and (self._times[0] <= self._now or self._times[0] < end - ROUNDING_S):
            heapq.heappop(self._times)
        is_exact = bool(self._times) and self._times[0] <= end + ROUNDING_S
        self._now = self._times[0] if is_exact else end
        return 0.0

    def _waiting(self) -> str:
        tasks = asyncio.all_tasks(self)
        return "waiting: " + (", ".join(sorted(map(_place, tasks))) or "no task")


class _JumpingSelector(selectors.SelectSelector):
    """Watches the loop's own wake-up socket, and passes virtual time instead of waiting."""

    def __init__(self, pass_time: Callable[[float | None], float]) -> None:
        super().__init__()
        self._pass_time = pass_time

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        if self.get_map():
            raise ContractError(f"virtual time has no real I/O, but {fileobj!r} was to be watched; use asyncio.run")
        return super().register(fileobj, events, data)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or (timeout is not None and timeout <= 0):
            return ready
        wait = self._pass_time(timeout)
        if not wait:
            return []
        ready = super().select(wait)
        if not ready:
            raise Deadlock(f"a thread has not answered for {wait} real seconds")
        return ready


def _place(task: asyncio.Task[Any]) -> str:
    """A task's name and the line it waits at."""
    frames = task.get_stack(limit=1)
    where = f" at {frames[0].f_code.co_name}:{frames[0].f_lineno}" if frames else ""
    return task.get_name() + where
