"""What the tests of sandboxes see of processes from outside, and how they wait for it."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

WAIT_S = 20.0


async def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < end
        await asyncio.sleep(0.01)


def is_there(pid: int) -> bool:
    """Whether a process still does anything: a zombie waits for its parent alone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


def group_of(pid: int) -> list[int]:
    """`pid` and all that descends from it."""
    found = [pid]
    for one in found:
        try:
            for path in Path(f"/proc/{one}/task").glob("*/children"):
                found += map(int, path.read_text().split())
        except OSError:  # it has ended since
            continue
    return found
