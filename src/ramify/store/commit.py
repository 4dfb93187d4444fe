"""GroupCommit: one thread that makes lines durable in the order they were put.

It owns the open file. `put` never touches the disk. A batch takes all lines that wait, or one with `fsync`. It begins
as soon as someone waits for one of its lines; else 20 ms after its first line, and not before the thread has rested
`REST` times as long as the last batch took. Waiters are told after fdatasync, which takes about 4 ms where it was
measured.

The rest is for the run, not for the disk. After each call of the system the thread waits for the interpreter's lock,
which a busy run gives up for moments only: each of them wakes the thread, mostly in vain, thousands of times a second.
A run that records 2,700 lines a second took 38 % more CPU with a journal than without, and takes 20 % with the rest
(`bench/many_trees.py`).

After the first failure to open, write or sync, nothing more is written, because the state of the file is unknown. The
lines that may not be durable stay in memory (`unsaved`), and every waiter gets a `StoreError`.
"""

import asyncio
import errno
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import groupby, islice
from pathlib import Path
from typing import Literal, Protocol

from ramify.core.errors import ConfigError, StoreError
from ramify.store.framing import FramedLine, file_name
from ramify.store.plain_file import writable

Durability = Literal["fsync", "group", "os"]
"""fsync: each record is synced on its own. group: records are synced in batches and acknowledged when on disk. os:
records are acknowledged when the operating system has them; a power cut may lose acknowledged records, but a crash of
the process cannot."""

REST = 4
"""How many times as long as it worked the thread rests: it works one part in five of the time, as the watch of commands
does (`workspaces/process_watch.py`). With 3 to 9 a journal cost a busy run about the same."""
MAX_REST_S = 1.0
"""The longest rest, however slow the disk is; the interval of Redis's `appendfsync everysec`."""
GONE = errno.ESTALE
"""The error of a journal file that another program deleted, replaced or cut."""
_sync_data = getattr(os, "fdatasync", os.fsync)
"""macOS has no fdatasync."""


class JournalFile(Protocol):
    """A file opened at its end for appending."""

    def write(self, data: memoryview) -> int:
        """Append some of `data` and return how many bytes."""
        ...

    def sync(self) -> None:
        """Return when everything written is on disk."""
        ...

    def close(self) -> None: ...


class AppendFile:
    """A `JournalFile` of the operating system. Its folder entry is on disk when the constructor returns.

    After each write, the file at its path must still be this one, as long as it was written. Otherwise the write raises
    an `OSError`: what another program deleted, replaced or cut can no longer be continued.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = writable(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._own = os.fstat(self._descriptor)
        self._num_bytes = self._own.st_size
        sync_folder(path.parent)

    def write(self, data: memoryview) -> int:
        num_written = os.write(self._descriptor, data)
        self._num_bytes += num_written
        self._refuse_other()
        return num_written

    def _refuse_other(self) -> None:
        try:
            there = self._path.lstat()
        except FileNotFoundError:
            raise OSError(GONE, f"{self._path} was deleted or moved while the run wrote it") from None
        if not os.path.samestat(self._own, there):
            raise OSError(GONE, f"{self._path} was replaced while the run wrote it")
        if there.st_size != self._num_bytes:
            raise OSError(
                GONE,
                f"{self._path} has {there.st_size:,} bytes, and the run wrote {self._num_bytes:,}: "
                "something changed it",
            )

    def sync(self) -> None:
        _sync_data(self._descriptor)

    def close(self) -> None:
        os.close(self._descriptor)


def sync_folder(folder: Path) -> None:
    """Make the entries of `folder` durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@dataclass(frozen=True, slots=True)
class Writing:
    """How a journal is written (`docs/guides/resume.md`)."""

    durability: Durability = "group"
    max_delay_s: float = 0.02
    """A line that nobody waits for is written this long after it came, or when the thread has rested."""
    max_pending_bytes: int = 64 * 2**20
    """If more bytes than this wait for the disk, `room` waits."""
    max_file_bytes: int = 256 * 2**20
    max_record_bytes: int = 64 * 2**20
    min_free_bytes: int = 16 * 2**20
    """A journal is not opened with less free space than this."""
    open_file: Callable[[Path], JournalFile] = AppendFile


def kill_after(environment: Mapping[str, str]) -> int | None:
    """`RAMIFY_KILL_AFTER=N`: the journal kills its process right after it wrote the N-th line; None = never."""
    text = environment.get("RAMIFY_KILL_AFTER", "")
    if not text:
        return None
    if not text.isdecimal() or int(text) < 1:
        raise ConfigError(f"RAMIFY_KILL_AFTER={text!r}: give a number of records from 1 on, or unset it")
    return int(text)


class GroupCommit:
    """Writes the lines of a journal in `folder`, starting at line `number`."""

    def __init__(self, folder: Path, number: int, writing: Writing) -> None:
        self._folder = folder
        self._writing = writing
        self._kills_in = kill_after(os.environ)
        self._changed = threading.Condition()
        self._queue: deque[FramedLine] = deque()
        self._pending_bytes = 0
        self._next = number
        """Every line before this one is durable."""
        self._wanted = -1
        """The last line somebody waits for."""
        self._waiters: dict[asyncio.Future[None], int] = {}
        self._error: Exception | None = None
        self._is_closing = False
        self._took_s = 0.0
        """Seconds from the begin of the last batch to its end."""
        self._file: JournalFile | None = None
        self._file_index = -1
        self._thread = threading.Thread(target=self._run, name="ramify-journal", daemon=True)
        self._thread.start()

    @property
    def unsaved(self) -> list[bytes]:
        """The lines that may not be on disk, in order."""
        with self._changed:
            return [line.data for line in self._queue]

    def put(self, lines: list[FramedLine]) -> None:
        """Queue lines for writing; returns at once. Raises `StoreError` if the journal accepts nothing more."""
        with self._changed:
            self._refuse_if_stopped()
            if self._is_closing:
                raise StoreError(f"the journal {self._folder} is closed and takes no more records; resume the run")
            self._queue.extend(lines)
            for line in lines:
                self._pending_bytes += len(line.data)
            if len(self._queue) <= len(lines):
                self._changed.notify_all()

    def sync(self, number: int) -> None:
        """Return when line `number` is durable; blocks. Raises `StoreError` if it cannot become durable."""
        with self._changed:
            self._want(number)
            self._changed.wait_for(lambda: self._next > number or self._error is not None)
            if self._next <= number:
                self._refuse_if_stopped()

    async def synced(self, number: int) -> None:
        """`sync` without blocking the event loop. Safe to cancel."""
        with self._changed:
            if self._next > number:
                return
            self._refuse_if_stopped()
            future = asyncio.get_running_loop().create_future()
            self._waiters[future] = number
            self._want(number)
        try:
            await future
        finally:
            with self._changed:
                self._waiters.pop(future, None)

    async def room(self) -> None:
        """Return when few enough bytes wait for the disk. Await it before starting new work."""
        with self._changed:
            last = self._queue[-1].number if self._pending_bytes > self._writing.max_pending_bytes else None
        if last is not None:
            await self.synced(last)

    def close(self, last: list[FramedLine]) -> None:
        """Write the waiting lines, then `last`, and close the file. Raises `StoreError` if something could not be
        saved."""
        with self._changed:
            if self._error is None:
                self._queue.extend(last)
            self._is_closing = True
            self._changed.notify_all()
        self._thread.join()
        if self._file is not None:
            self._close_file(self._file)
        with self._changed:
            self._refuse_if_stopped()

    def _close_file(self, file: JournalFile) -> None:
        self._file = None
        try:
            file.close()
        except OSError as error:
            if self._error is None:
                self._stop(error)

    # -- the thread ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        """Boundary: any error here stops the journal and is reported to every waiter."""
        try:
            while batch := self._next_batch():
                began = time.monotonic()
                self._write(batch)
                self._settle(batch)
                self._took_s = time.monotonic() - began
        except Exception as error:  # noqa: BLE001
            self._stop(error)

    def _next_batch(self) -> list[FramedLine]:
        """Wait for lines and return the first of them. Returns an empty list when the journal closes."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._is_closing)
            if self._queue and self._writing.durability != "fsync":
                rest_s = min(REST * self._took_s, MAX_REST_S)
                self._changed.wait_for(self._is_due, max(self._writing.max_delay_s, rest_s))
            batch_size = 1 if self._writing.durability == "fsync" else len(self._queue)
            return list(islice(self._queue, batch_size))[: self._kills_in]

    def _is_due(self) -> bool:
        return self._is_closing or self._wanted >= self._queue[0].number

    def _write(self, batch: list[FramedLine]) -> None:
        for file_index, lines in groupby(batch, key=lambda line: line.file_index):
            file = self._turn_to(file_index)
            rest = memoryview(b"".join(line.data for line in lines))
            while rest:
                num_written = file.write(rest)
                if num_written < 1:
                    raise OSError(errno.EIO, "the disk took no more bytes and gave no reason")
                rest = rest[num_written:]
            if self._writing.durability != "os":
                file.sync()
        if self._kills_in is not None:
            self._kills_in -= len(batch)
            if not self._kills_in:
                os.kill(os.getpid(), signal.SIGKILL)

    def _turn_to(self, file_index: int) -> JournalFile:
        """The open file with that index. The previous file is synced first, whatever the durability."""
        if self._file is None or self._file_index != file_index:
            if self._file is not None:
                self._file.sync()
                self._file.close()
                self._file = None
            self._file = self._writing.open_file(self._folder / file_name(file_index))
            self._file_index = file_index
        return self._file

    def _settle(self, batch: list[FramedLine]) -> None:
        """The batch is durable: remove it and tell its waiters."""
        with self._changed:
            for line in batch:
                self._queue.popleft()
                self._pending_bytes -= len(line.data)
            self._next = batch[-1].number + 1
            self._changed.notify_all()
            for future in [f for f, number in self._waiters.items() if number < self._next]:
                del self._waiters[future]
                _tell(future, None)

    def _stop(self, error: Exception) -> None:
        with self._changed:
            self._error = error
            self._changed.notify_all()
            for future in self._waiters:
                _tell(future, self._stopped(error))
            self._waiters.clear()

    # -- under the lock -----------------------------------------------------------------------------------------------

    def _want(self, number: int) -> None:
        if number > self._wanted:
            self._wanted = number
            self._changed.notify_all()

    def _refuse_if_stopped(self) -> None:
        if self._error is not None:
            raise self._stopped(self._error) from self._error

    def _stopped(self, error: Exception) -> StoreError:
        is_gone = isinstance(error, OSError) and error.errno == GONE
        remedy = "put the file back as it was" if is_gone else "make room or repair the disk"
        stopped = StoreError(
            f"the journal {self._folder} stopped: {error}; {len(self._queue)} records were not saved and are kept in "
            f"memory; {remedy}, then resume the run"
        )
        stopped.__cause__ = error
        return stopped


def _tell(future: asyncio.Future[None], error: StoreError | None) -> None:
    """Answer a future that belongs to another thread's event loop."""

    def answer() -> None:
        if future.done():
            return
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)

    loop = future.get_loop()
    if not loop.is_closed():
        loop.call_soon_threadsafe(answer)
