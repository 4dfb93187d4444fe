"""Loop: a coroutine run to its end in an event loop of its own, as `asyncio.run` does.

The difference: at the end nothing is waited for that ignores being cancelled. A tool that hangs and swallows its
cancellation would otherwise hold a process whose run is over, and one that is interrupted, for good.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

PATIENCE_S = 0.6
"""How long tasks that are left at the end, which have all been cancelled, are waited for."""
AGAIN_S = 0.1
"""After this long they are cancelled again: a second interrupt finds some of them cleaning up after the first."""


def run(main: Coroutine[Any, Any, T]) -> T:
    """What `main` returns or raises. An interrupt cancels it; a second one ends it where it stands."""
    runner = asyncio.Runner()
    try:
        return runner.run(main)
    finally:
        _close(runner)


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
