"""ShardedRun: a sharded run, grown by workers that may die.

It decides which shard has a worker and what happens when a worker dies, and merges the report. A `WorkerLauncher`
decides where workers run: on Ray (`ramify.sharded.ray`) or elsewhere. All state is in the journals: when a worker dies,
the next one continues from its shard's journal, and no finished node and no budget is lost. Invariant: a shard has at
most one worker here, and the lock of its journal keeps other processes from writing.
"""

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from ramify.core.errors import ConfigError, FolderBusy, StoreError, WorkersDown
from ramify.core.problem import Problem
from ramify.core.shard import Shard
from ramify.runner.deadline import finished
from ramify.runner.report import RunReport
from ramify.runner.tally import Tally
from ramify.sharded.workers import Worker, WorkerDied, WorkerInfo, WorkerLauncher
from ramify.store.journal import file_paths, is_begun, store_errors
from ramify.store.layout import JOURNAL, SHARDS, shard_path
from ramify.store.shards import ShardedFolder
from ramify.version import __version__


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """When a worker counts as dead, and how often a run replaces it."""

    max_deaths: int = 3
    """Deaths in a row without a new byte in the shard's journal; one more stops the run."""
    pause_s: float = 1.0
    """Pause before a dead worker is replaced; each further death in a row doubles it."""
    start_s: float = 180.0
    """Longest time that a worker may take to start: its machine may have to load libraries over the network."""
    busy_s: float = 60.0
    """Longest time that the journal of a dead worker may stay locked."""
    stop_s: float = 20.0
    """Longest time that a worker may take to stop."""
    look_s: float = 0.5
    """Time between two progress reports."""

    def __post_init__(self) -> None:
        if self.max_deaths < 0 or min(self.start_s, self.busy_s, self.stop_s, self.look_s) <= 0 or self.pause_s < 0:
            raise ConfigError(f"{self!r}: times must be above 0, pause_s and max_deaths 0 or more")


RESTARTS = RestartPolicy()
LOST_STOP_S = 5.0
"""Longest time that a worker may take to stop after what started it is lost."""
Lost = Callable[[], Awaitable[str | None]]
"""What has happened to the machines that workers need; None = nothing."""


async def _never() -> None:
    """The `Lost` of workers that need nothing besides their own processes."""


@dataclass(slots=True)
class Deaths:
    """Deaths in a row of a shard's workers without growth of its journal."""

    num_bytes: int
    """The largest size that the journal has had."""
    number: int = 0

    def count(self, num_bytes: int) -> None:
        """Count a death after which the journal has `num_bytes`."""
        self.number = 1 if num_bytes > self.num_bytes else self.number + 1
        self.num_bytes = max(self.num_bytes, num_bytes)


class ShardedRun:
    """Grows every shard of `folder`, at most `num_workers` at a time. The run's `problems` are made once, here, and
    each worker gets its part, because making them in every worker may cost as much as growing. `show` is called with
    the progress of the run and `say` with messages about workers. `lost` is called often; what it returns ends the
    run, which can be resumed."""

    def __init__(
        self,
        folder: ShardedFolder,
        problems: Sequence[Problem],
        launcher: WorkerLauncher,
        *,
        num_workers: int,
        show: Callable[[Tally], object] = lambda tally: None,
        say: Callable[[str], object] = lambda text: None,
        restarts: RestartPolicy = RESTARTS,
        lost: Lost = _never,
    ) -> None:
        if num_workers < 1:
            raise ConfigError(f"{num_workers!r} workers: a run needs at least 1")
        self._folder = folder
        self._problems = problems
        self._launcher = launcher
        self._num_at_once = min(num_workers, len(folder.shards))
        self._show = show
        self._say = say
        self._restarts = restarts
        self._lost = lost
        self._stop_s = restarts.stop_s
        self._token = f"seen-{secrets.token_hex(8)}"
        self._workers: dict[Shard, Worker] = {}
        self._tallies: dict[Shard, Tally] = {}
        self._reports: dict[Shard, RunReport] = {}

    async def grow(self) -> RunReport:
        """Grow the run to its end. The first error of a shard stops the other shards, and is raised when all have
        stopped. Raises `WorkersDown` if the workers of a shard keep dying, or what they need is lost. Cancelling this
        stops the workers; the run can be resumed."""
        began = time.monotonic()
        token = self._folder.path / SHARDS / self._token
        with store_errors("write to", token.parent):
            token.touch()
        try:
            async with asyncio.TaskGroup() as group:
                beside = [group.create_task(self._look()), group.create_task(self._watch())]
                await self._grow_all()
                for task in beside:
                    task.cancel()
        except ExceptionGroup as faults:
            first = _first(faults)
            raise first from first.__cause__
        finally:
            token.unlink(missing_ok=True)
        reports = [self._reports[shard] for shard in self._folder.shards]
        return RunReport.merged(reports, seconds=time.monotonic() - began)

    async def _grow_all(self) -> None:
        slots: asyncio.Queue[int] = asyncio.Queue()
        for slot in range(self._num_at_once):
            slots.put_nowait(slot)

        async def one(shard: Shard) -> None:
            slot = await slots.get()
            self._reports[shard] = await self._grow(shard, slot)
            slots.put_nowait(slot)

        async with asyncio.TaskGroup() as group:
            for shard in self._folder.shards:
                group.create_task(one(shard))

    async def _grow(self, shard: Shard, slot: int) -> RunReport:
        """Grow one shard, and replace its worker whenever it dies."""
        deaths = Deaths(self._journal_bytes(shard))
        while True:
            try:
                return await self._grow_once(shard, slot)
            except WorkerDied as death:
                deaths.count(self._journal_bytes(shard))
                if deaths.number > self._restarts.max_deaths:
                    raise WorkersDown(
                        f"the worker of shard {shard.index} died {deaths.number} times in a row without progress; "
                        f"the last time: {death}"
                    ) from death
                self._say(f"the worker of shard {shard.index} died ({death}); another one goes on")
            await asyncio.sleep(self._restarts.pause_s * 2 ** (deaths.number - 1))

    async def _grow_once(self, shard: Shard, slot: int) -> RunReport:
        worker = await self._started(shard, slot)
        try:
            self._check(await self._met(worker), shard)
            self._workers[shard] = worker
            return await self._ended(worker)
        except asyncio.CancelledError:
            await finished(self._stop(worker))
            raise
        finally:
            self._workers.pop(shard, None)
            self._launcher.end(worker)

    async def _started(self, shard: Shard, slot: int) -> Worker:
        return await self._launcher.start(
            self._folder.path, shard.of(self._problems), slot=slot, num_at_once=self._num_at_once
        )

    async def _met(self, worker: Worker) -> WorkerInfo:
        try:
            async with asyncio.timeout(self._restarts.start_s):
                return await worker.meet(self._token)
        except TimeoutError:
            raise WorkerDied(f"it did not start within {self._restarts.start_s:g} s") from None

    def _check(self, info: WorkerInfo, shard: Shard) -> None:
        """Raise an error if the worker does not see the folder, or has another version of ramify."""
        if not info.sees_folder:
            raise StoreError(
                f"the worker of shard {shard.index}, on {info.host}, does not see {self._folder.path}: the run folder "
                "must be on a file system that all workers share; choose another with --out"
            )
        if info.library != __version__:
            raise ConfigError(
                f"{info.host} has ramify {info.library} and this is {__version__}; install one version on all"
            )

    async def _ended(self, worker: Worker) -> RunReport:
        """Let a worker grow its shard. Retries while the journal is locked: a process that seemed dead may hold it a
        little longer."""
        end = asyncio.get_running_loop().time() + self._restarts.busy_s
        while True:
            ended = await worker.grow()
            if ended.report is not None:
                return ended.report
            fault = ended.error() or WorkerDied("somebody else told it to stop")
            if not isinstance(fault, FolderBusy) or asyncio.get_running_loop().time() >= end:
                raise fault
            await asyncio.sleep(self._restarts.look_s)

    async def _stop(self, worker: Worker) -> None:
        try:
            async with asyncio.timeout(self._stop_s):
                await worker.stop()
        except (WorkerDied, TimeoutError):
            pass  # The caller ends the process; the journal survives that as it survives any kill.

    async def _look(self) -> None:
        """Show the progress of the run every `look_s`."""
        while True:
            await asyncio.sleep(self._restarts.look_s)
            workers = dict(self._workers)
            tallies = await asyncio.gather(*(w.tally() for w in workers.values()), return_exceptions=True)
            for shard, tally in zip(workers, tallies, strict=True):
                if isinstance(tally, Tally):
                    self._tallies[shard] = tally
                elif not isinstance(tally, WorkerDied):
                    raise tally
            self._show(Tally.total(self._tallies.values()))

    async def _watch(self) -> None:
        """End the run when no worker could be started any more."""
        while (why := await self._lost()) is None:  # noqa: ASYNC110 - a process that dies tells nobody
            await asyncio.sleep(self._restarts.look_s)
        self._stop_s = min(self._stop_s, LOST_STOP_S)
        raise WorkersDown(f"{why}: no worker can go on")

    def _journal_bytes(self, shard: Shard) -> int:
        folder = shard_path(self._folder.path, shard.index) / JOURNAL
        return sum(path.stat().st_size for path in file_paths(folder)) if is_begun(folder) else 0


def _first(faults: ExceptionGroup[Exception]) -> Exception:
    """The first error of a nested exception group."""
    first = faults.exceptions[0]
    return _first(first) if isinstance(first, ExceptionGroup) else first
