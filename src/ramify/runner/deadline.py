"""Deadlines that hold whatever the code under them does.

`asyncio.timeout` waits until the cancelled code gives in, but plug-in code may swallow a cancellation, cancel itself or
try to exit the process. `Deadlines.within` returns to the caller in each of these cases.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
Work = Callable[[], Coroutine[Any, Any, T]]

GRACE_S = 1.0
"""Seconds that cancelled code has to clean up before nobody waits for it any more."""


class OutOfTime(Exception):
    """The code was still running at its deadline. Private to the runner: callers turn it into data."""


class GaveUp(Exception):
    """The code under a deadline cancelled itself or tried to exit the process."""


class Deadlines:
    """Runs coroutines under deadlines, and owns those that did not stop when cancelled."""

    def __init__(self) -> None:
        self.abandoned: set[asyncio.Task[Any]] = set()

    async def within(
        self, work: Work[T], seconds: float, *, unwanted: Callable[[T], object] = lambda result: None
    ) -> T:
        """Return or raise what `work()` returns or raises. Raises `OutOfTime` after `seconds`, or `GaveUp`. Cancelling
        this cancels the work.

        `unwanted` is called with a result that came after the deadline or a cancellation.
        """
        task = asyncio.create_task(contained(work))
        try:
            await asyncio.sleep(0)
            if not task.done():  # Most tools inside this process are done by now and need no timer.
                await asyncio.wait({task}, timeout=seconds)
        except asyncio.CancelledError:
            await self._stop(task, unwanted)
            raise
        if not task.done():
            await self._stop(task, unwanted)
            raise OutOfTime
        if task.cancelled():
            raise GaveUp("it cancelled itself")
        return task.result()

    async def close(self) -> None:
        """Cancel the abandoned tasks once more and wait up to `GRACE_S` for them; afterwards forget them."""
        tasks = set(self.abandoned)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=GRACE_S)
        self.abandoned -= tasks

    async def _stop(self, task: asyncio.Task[T], unwanted: Callable[[T], object]) -> None:
        def ended(task: asyncio.Task[T]) -> None:
            self.abandoned.discard(task)
            # Reading the exception keeps asyncio from reporting at exit that nobody did.
            if not task.cancelled() and task.exception() is None:
                unwanted(task.result())

        task.cancel()
        self.abandoned.add(task)
        task.add_done_callback(ended)
        await asyncio.wait({task}, timeout=GRACE_S)


async def contained(work: Work[T]) -> T:
    """Raise `GaveUp` if the work raises SystemExit, which would otherwise stop the event loop."""
    try:
        return await work()
    except SystemExit as error:
        raise GaveUp(f"it called exit({error.code!r})") from error


async def finished(work: Coroutine[Any, Any, T]) -> T:
    """Return what `work` returns. If cancelled, first wait for its end; a second cancellation raises at once."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.gather(task, return_exceptions=True)
        raise


def is_being_cancelled() -> bool:
    """Whether the running task was asked to end. If not, a `CancelledError` in it is a fault of its own code."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
