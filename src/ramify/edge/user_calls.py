"""User calls: calls a function of the user's, a coroutine function in the event loop and any other in a thread."""

import asyncio
import inspect
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from ramify.edge.daemon_threads import DaemonThreads
from ramify.edge.error_text import error_text


@dataclass(slots=True)
class ThreadWatch:
    """The seconds that a function worked in its thread."""

    took_s: float | None = None
    """None = it did not run in a thread, or not only there."""


async def returned(call: partial[Any], threads: DaemonThreads, watch: ThreadWatch | None = None) -> Any:
    """The return value of a user's function. A coroutine function runs in the event loop, any other in a thread, where
    `watch` measures it."""
    if inspect.iscoroutinefunction(call.func):
        return await call()
    watch = watch or ThreadWatch()
    said = await asyncio.get_running_loop().run_in_executor(threads, _contained, call, watch)
    if not inspect.isawaitable(said):
        return said
    watch.took_s = None
    return await said


def _contained(call: Callable[[], Any], watch: ThreadWatch) -> Any:
    """Run in a thread. `exit()` and the like become a `RuntimeError`, so they end neither the process nor the loop."""
    began = time.perf_counter()
    try:
        return call()
    except Exception:
        raise
    except BaseException as error:
        raise RuntimeError(error_text(error)) from error
    finally:
        watch.took_s = time.perf_counter() - began
