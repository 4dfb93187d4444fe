"""Background loop: the one event loop on which coroutines of a trainer's synchronous functions run.

It lives as long as the process, in a daemon thread, so connections of an engine outlive the call that opened them. If
the trainer has such a loop (THUDM/slime slime/utils/async_utils.py), that one is used: its functions may have opened
connections there. Waiting for the event loop from inside it raises an error.
"""

import asyncio
import sys
import threading
from collections.abc import Coroutine
from functools import cache
from importlib import import_module
from typing import Any, Final, TypeVar

from ramify.core.errors import ContractError

T = TypeVar("T")

TRAINERS: Final = ("slime", "miles")
"""Packages of the trainers that our rollout functions serve."""


def trainer() -> str | None:
    """The trainer that runs this process; None = none. PyPI has another package named `slime`, so a trainer counts only
    if the process has imported its `rollout.base_types`."""
    return next((name for name in TRAINERS if f"{name}.rollout.base_types" in sys.modules), None)


def background_loop() -> asyncio.AbstractEventLoop:
    """The running loop: the trainer's, or one of our own."""
    package = trainer()
    if package is None:
        return _own()
    return import_module(f"{package}.utils.async_utils").get_async_loop().loop


def run_in_background(main: Coroutine[Any, Any, T]) -> T:
    """Run `main` on the loop, and return its result or raise its error. An interrupt of the caller cancels it."""
    loop = background_loop()
    if _running() is loop:
        main.close()
        raise ContractError(
            "a rollout function was called inside the event loop that it waits for: call it from another thread"
        )
    future = asyncio.run_coroutine_threadsafe(main, loop)
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


@cache
def _own() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="ramify background loop", daemon=True).start()
    return loop


def _running() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
