"""Deadlines that hold whatever the code under them does.

`asyncio.timeout` waits until the cancelled code gives in; plug-in code may swallow a cancellation, cancel itself or try
to leave the process. `Deadlines.within` gives the caller its time back in each of these cases.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
Work = Callable[[], Coroutine[Any, Any, T]]

GRACE_S = 1.0
"""Time that cancelled code has to clean up before it is left to itself."""


class OutOfTime(Exception):
    """The code under a deadline was still running at it. Private to the runner: callers turn it into data."""


class GaveUp(Exception):
    """The code under a deadline cancelled itself or wanted the process to end."""


class Deadlines:
    """Runs coroutines under deadlines, and owns those that did not stop when told to."""

    def __init__(self) -> None:
        self.abandoned: set[asyncio.Task[Any]] = set()

    async def within(
        self, work: Work[T], seconds: float, *, unwanted: Callable[[T], object] = lambda result: None
    ) -> T:
        """What `work()` returns or raises; `OutOfTime` after `seconds`, or `GaveUp`. Cancelling this cancels it.

        `unwanted` is called with a result that came when nobody waited for it any more.
        """
        task = asyncio.create_task(contained(work))
        try:
            await asyncio.sleep(0)
            if not task.done():  # Most tools of this process are by now, and need no timer.
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
        """Ask once more what was abandoned to stop, and wait as long as is decent, but for each task only once."""
        tasks = set(self.abandoned)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=GRACE_S)
        self.abandoned -= tasks

    async def _stop(self, task: asyncio.Task[T], unwanted: Callable[[T], object]) -> None:
        def ended(task: asyncio.Task[T]) -> None:
            self.abandoned.discard(task)
            # Looking at the exception keeps asyncio from reporting at exit that nobody did.
            if not task.cancelled() and task.exception() is None:
                unwanted(task.result())

        task.cancel()
        self.abandoned.add(task)
        task.add_done_callback(ended)
        await asyncio.wait({task}, timeout=GRACE_S)


async def contained(work: Work[T]) -> T:
    """A task that raises SystemExit takes the loop down with it; here it is a fault of the code alone."""
    try:
        return await work()
    except SystemExit as error:
        raise GaveUp(f"it called exit({error.code!r})") from error


async def finished(work: Coroutine[Any, Any, T]) -> T:
    """What `work` returns. Cancelled meanwhile, this waits for its end and raises then; cancelled twice, at once."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.gather(task, return_exceptions=True)
        raise


def is_being_cancelled() -> bool:
    """Whether somebody wants the running task to end; if not, a `CancelledError` in it is a fault of its own code."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
