"""Workers: a worker grows one shard of a run in its own process.

`ShardWorker` does the work. A `Worker` is anything that forwards its four calls, over any connection. All arguments and
results can be pickled. Every call may be repeated, because growing continues from the journal.
"""

import asyncio
import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ramify.core.errors import RamifyError
from ramify.core.shard import Portion
from ramify.runner.deadline import finished
from ramify.runner.folder import grow_shard
from ramify.runner.loop import collecting_rarely
from ramify.runner.report import RunReport
from ramify.runner.tally import Tally, Tallying
from ramify.store.layout import SHARDS
from ramify.version import __version__


class WorkerDied(Exception):
    """The process of a worker is gone, or cannot be reached. Only `ShardedRun` handles it."""


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """Where a worker runs, and whether it sees the run folder."""

    host: str
    pid: int
    library: str
    """Version of ramify."""
    sees_folder: bool


@dataclass(frozen=True, slots=True)
class ShardEnd:
    """How a worker's growing ended: with a report, or with a fault. Neither = it was told to stop."""

    report: RunReport | None = None
    fault: RamifyError | None = None
    errno: int | None = None
    """The `errno` of the OS error that caused the fault. Pickling a fault loses its cause."""

    def error(self) -> RamifyError | None:
        """The fault, with its OS error as the cause."""
        if self.fault is not None and self.errno is not None:
            self.fault.__cause__ = OSError(self.errno, os.strerror(self.errno))
        return self.fault


class Worker(Protocol):
    """Grows one shard, somewhere. Every method raises `WorkerDied` if it is gone."""

    async def meet(self, token: str) -> WorkerInfo:
        """Tell where the worker runs, and whether it sees the file `token` in the run's folder of shards."""
        ...

    async def grow(self) -> ShardEnd:
        """Grow the shard to its end. Its journal is closed when this returns."""
        ...

    async def tally(self) -> Tally:
        """The progress of the shard."""
        ...

    async def stop(self) -> None:
        """Stop `grow`, and return when it has ended."""
        ...


class WorkerLauncher(Protocol):
    """Starts and ends workers."""

    async def start(self, path: Path, portion: Portion, *, slot: int, num_at_once: int) -> Worker:
        """Start a worker for a shard of the run at `path`. It is the only one in its slot, of `num_at_once` slots. May
        raise `WorkerDied`."""
        ...

    def end(self, worker: Worker) -> None:
        """Release a worker in any state; its process ends. Never raises."""
        ...


class ShardWorker:
    """The worker itself. Create it in the process that does the work."""

    def __init__(self, path: str, portion: Portion, num_at_once: int) -> None:
        self._path = Path(path)
        self._portion = portion
        self._num_at_once = num_at_once
        self._tallying = Tallying()
        self._growing: asyncio.Task[RunReport] | None = None

    async def meet(self, token: str) -> WorkerInfo:
        sees_folder = (self._path / SHARDS / token).is_file()
        return WorkerInfo(socket.gethostname(), os.getpid(), __version__, sees_folder)

    async def grow(self) -> ShardEnd:
        self._tallying = tallying = Tallying()
        work = grow_shard(self._path, self._portion, observers=[tallying.observe], num_at_once=self._num_at_once)
        self._growing = growing = asyncio.ensure_future(work)
        try:
            with collecting_rarely():
                await asyncio.wait({growing})
        finally:
            await finished(self.stop())
        if growing.cancelled():
            return ShardEnd()
        fault = growing.exception()
        if isinstance(fault, RamifyError):
            return ShardEnd(fault=fault, errno=fault.__cause__.errno if isinstance(fault.__cause__, OSError) else None)
        return ShardEnd(growing.result())

    async def tally(self) -> Tally:
        return self._tallying.tally()

    async def stop(self) -> None:
        if self._growing is not None:
            self._growing.cancel()
            await asyncio.wait({self._growing})
