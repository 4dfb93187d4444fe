"""Open files: says that this process, or the machine, has no more of them, wherever the fault was met.

A connection, a pipe and a child process each need open files. If none can be had, no server, tool or folder is at
fault: it helps to wait until others are closed, to ask for fewer at once, or to raise the limit.
"""

import errno
import os
import resource
from collections.abc import Iterator
from typing import Final

FAULTS: Final = frozenset({errno.EMFILE, errno.ENFILE})
WAIT_S: Final = 1.0
"""Wait until what needs an open file is tried again."""
ENOUGH: Final = 65536
"""Open files that are enough for thousands of requests at once."""


def out_of_files(error: BaseException) -> str | None:
    """What to tell of an error that comes of too many open files: how many there may be, and what to change. None =
    it comes of something else."""
    fault = next((found for found in _chain(error) if isinstance(found, OSError) and found.errno in FAULTS), None)
    if fault is None:
        return None
    if fault.errno == errno.ENFILE:
        return "too many open files on this machine: end other programs, or raise the limit: sysctl fs.file-max"
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = hard if 0 <= hard < ENOUGH else ENOUGH
    raised = f"raise the limit: ulimit -n {most}" if most > soft else "raise the hard limit: ulimit -Hn (as root)"
    return (
        f"too many open files: {_open_now()} open, and this process may have {soft}; {raised}, or ask for fewer at "
        "once: engine.options.max_in_flight, max_trees"
    )


def _chain(error: BaseException) -> Iterator[BaseException]:
    """An error, what caused it, and what it wraps."""
    left, seen = [error], set[int]()
    while left:
        top = left.pop()
        if id(top) in seen:
            continue
        seen.add(id(top))
        yield top
        wrapped = vars(top).get("os_error")  # aiohttp's errors of connections
        below = top.exceptions if isinstance(top, BaseExceptionGroup) else ()
        left += [
            found for found in (top.__cause__, top.__context__, wrapped, *below) if isinstance(found, BaseException)
        ]


def _open_now() -> str:
    try:
        return f"{len(os.listdir('/proc/self/fd')) - 1} are"  # noqa: PTH208 - a path would be made for each
    except OSError:
        return "all are"
