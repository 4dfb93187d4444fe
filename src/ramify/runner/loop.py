"""Loop: runs a coroutine to its end in its own event loop, like `asyncio.run`.

The difference: at the end it does not wait for tasks that ignore cancellation. Otherwise a tool that hangs and swallows
its cancellation would keep the process alive after its run has ended or was interrupted.
"""

import asyncio
import contextlib
import gc
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from typing import Any, TypeVar

from ramify.core.errors import ConfigError

T = TypeVar("T")

PATIENCE_S = 0.6
"""Seconds to wait at the end for remaining tasks; all of them have been cancelled."""
AGAIN_S = 0.1
"""Seconds until remaining tasks are cancelled again: some may still clean up after a first interrupt."""

NEW_OBJECTS = 10_000
"""Allocations between two runs of the garbage collector; CPython's default is 700. A turn leaves no reference cycles,
but with hundreds of trees in flight its objects survive 700 allocations and are scanned again and again as old objects.
With 512 trees that took 85 of 385 microseconds a turn; with this value it takes 20 of 315 (bench/many_trees.py)."""


def run(main: Coroutine[Any, Any, T]) -> T:
    """Return or raise what `main` does. An interrupt cancels `main`; a second one stops it at once."""
    runner = asyncio.Runner()
    try:
        runner.get_loop()
    except OSError:  # No open file is left for it.
        main.close()
        raise
    try:
        with collecting_rarely():
            return runner.run(main)
    finally:
        _close(runner)


def refuse_running(name: str, instead: str) -> None:
    """Raise `ConfigError` where an event loop runs already, as in a notebook; `instead` is what works there."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise ConfigError(f"ramify.{name} runs an event loop of its own, and one runs here already; use {instead}")


def each(make: Callable[[], AsyncGenerator[T, None]]) -> Iterator[T]:
    """Yield what the generator yields. Its event loop runs only while the next item is waited for. Closing this closes
    the generator."""
    runner = asyncio.Runner()
    try:
        runner.get_loop()
        made = make()
        try:
            while (item := runner.run(_next(made))) is not None:
                yield item
        finally:
            runner.run(made.aclose())
    finally:
        _close(runner)


async def _next(made: AsyncGenerator[T, None]) -> T | None:
    return await anext(made, None)


@contextlib.contextmanager
def collecting_rarely() -> Iterator[None]:
    """Run the garbage collector less often, in the whole process: use it only around a loop that owns its thread."""
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
    loop.set_exception_handler(lambda loop, context: None)  # asyncio would report every task that is left.
    loop.close()
    asyncio.set_event_loop(None)
