"""Ctrl-C that Python or a library would lose.

Python 3.11 wraps what is raised in `__set_name__`, as when an enum is made, in a `RuntimeError`. It prints and drops
what is raised in `__del__` or in a hook of `fork`. Some libraries drop it too while they are imported.
"""

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def interrupts_kept() -> Iterator[None]:
    """Raise Ctrl-C at the end of the block where it was lost inside, or came out as something else."""
    before, shown = signal.getsignal(signal.SIGINT), sys.unraisablehook
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return
    heard: list[int] = []

    def hear(number: int, frame: FrameType | None) -> None:
        heard.append(number)
        before(number, frame)

    def show(dropped: "sys.UnraisableHookArgs") -> None:
        if not isinstance(dropped.exc_value, KeyboardInterrupt):
            shown(dropped)

    signal.signal(signal.SIGINT, hear)
    sys.unraisablehook = show
    try:
        yield
    except Exception as error:
        if heard:
            raise KeyboardInterrupt from error
        raise
    finally:
        signal.signal(signal.SIGINT, before)
        sys.unraisablehook = shown
    if heard:
        raise KeyboardInterrupt
