"""Loop: a coroutine run to its end in an event loop of its own, as `asyncio.run` does.

The difference: at the end nothing is waited for that ignores being cancelled. A tool that hangs and swallows its
cancellation would otherwise hold a process whose run is over, and one that is interrupted, for good.
"""

import asyncio
import contextlib
import gc
from collections.abc import Coroutine, Iterator
from typing import Any, TypeVar

T = TypeVar("T")

PATIENCE_S = 0.6
"""How long tasks that are left at the end, which have all been cancelled, are waited for."""
AGAIN_S = 0.1
"""After this long they are cancelled again: a second interrupt finds some of them cleaning up after the first."""

NEW_OBJECTS = 10_000
"""Objects made between two looks of the garbage collector, in place of CPython's 700. A turn leaves no cycles, but with
hundreds of trees in flight its objects outlive 700 others and are walked again and again as old ones: with 512 trees
that took 85 of 385 microseconds a turn, and takes 20 of 315 so (bench/many_trees.py)."""


def run(main: Coroutine[Any, Any, T]) -> T:
    """What `main` returns or raises. An interrupt cancels it; a second one ends it where it stands."""
    runner = asyncio.Runner()
    try:
        with collecting_rarely():
            return runner.run(main)
    finally:
        _close(runner)


@contextlib.contextmanager
def collecting_rarely() -> Iterator[None]:
    """Let the garbage collector look less often. It is the process's: only around a loop that owns its thread."""
    first, *others = gc.get_threshold()
    gc.set_threshold(max(first, NEW_OBJECTS) if first else 0, *others)
    try:
        yield
    finally:
        gc.set_threshold(first, *others)


def _close(runner: asyncio.Runner) -> None:
    loop = runner.get_loop()
    end = loop.time() + PATIENCE_S
    while (tasks := asyncio.all_tasks(loop)) and loop.time() < end:
        for task in tasks:
            task.cancel()
        loop.run_until_complete(asyncio.wait(tasks, timeout=AGAIN_S))
    if not tasks:
        runner.close()
        return
    loop.set_exception_handler(lambda loop, context: None)  # It would complain of each task that is left.
    loop.close()
    asyncio.set_event_loop(None)
