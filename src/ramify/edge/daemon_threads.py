"""DaemonThreads: runs blocking calls in threads that never keep the process alive."""

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from typing import Any, Final, TypeVar

T = TypeVar("T")


class DaemonThreads(Executor):
    """At most `max_threads` daemon threads, started when needed. Unlike a pool's threads, they never keep the process
    alive.

    A thread without a job for `idle_s` ends (60 s, as in Java's cached pools), so that short-lived tools leave no
    threads.
    """

    def __init__(self, max_threads: int, *, idle_s: float = 60.0) -> None:
        self._max_threads: Final = max_threads
        self._idle_s: Final = idle_s
        self._jobs: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._changed = threading.Condition()
        self._num_idle = 0
        self.num_threads: int = 0
        """Current number of threads."""

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        future: Future[T] = Future()
        with self._changed:
            self._jobs.append((future, partial(fn, *args, **kwargs)))
            if self._num_idle >= len(self._jobs):
                self._changed.notify()
            elif self.num_threads < self._max_threads:
                threading.Thread(target=self._work, name="ramify-tool", daemon=True).start()
                self.num_threads += 1
        return future

    def _work(self) -> None:
        while (job := self._next_job()) is not None:
            _settle(*job)

    def _next_job(self) -> tuple[Future[Any], Callable[[], Any]] | None:
        """A job; None = the calling thread must end and is no longer counted."""
        with self._changed:
            self._num_idle += 1
            self._changed.wait_for(lambda: self._jobs, timeout=self._idle_s)
            self._num_idle -= 1
            if not self._jobs:
                self.num_threads -= 1
                return None
            return self._jobs.popleft()


def _settle(future: Future[Any], job: Callable[[], Any]) -> None:
    """Run a job unless it was cancelled."""
    if future.set_running_or_notify_cancel():
        try:
            result = job()
        except BaseException as error:  # noqa: BLE001 - the future carries whatever it is
            future.set_exception(error)
        else:
            future.set_result(result)
