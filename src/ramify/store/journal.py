"""Journal: the append-only record of a run, a folder of checksummed JSON lines (`framing`) in files of up to 256 MB.

One process writes (`flock`); any number may read. A journal that is opened again continues after its longest valid
prefix. A tail torn by a crash is cut off and reported, never skipped silently. Damage with valid records after it is a
`StoreError` that names the file, the record and the byte. A file is sealed when it is full and when the journal is
closed. A sealed file is never written again, so a closed journal continues in a new file. The first line of a run's
journal has a copy beside the journal's folder, because nothing can be read without it.
"""

import fcntl
import os
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import BinaryIO

from ramify.core.errors import FolderBusy, StoreError
from ramify.store.commit import GroupCommit, Writing, sync_folder
from ramify.store.framing import (
    FRAME_BYTES,
    Lines,
    Position,
    check_version,
    decode,
    encode,
    file_name,
    frame,
    is_of_tree,
    parse,
    parse_number,
    sound_end,
)
from ramify.store.plain_file import new_plain, open_plain, read_plain, refuse_link, writable
from ramify.store.records import Accepted, Header, Record, RunRecord, Sealed

LOCK = "lock"
COPY = "header.copy"
"""The first line of a journal once more, beside its folder."""
MAX_COPY_BYTES = 16 * 2**20
MAX_FILE_BYTES = 2 * Writing().max_file_bytes
"""A larger file is no file of a journal: one that a run writes ends with the first record past half of this."""
MAX_LINE_BYTES = Writing().max_record_bytes + FRAME_BYTES
BLOCK_BYTES = 2**18
"""What is read of a file at once."""
_HEADER_BEGINS = b'{"n":0,"record":"header",'
_ACCEPTED = b'"record":"accepted",'
MAX_FRAME = 2 * FRAME_BYTES
_FILE_NAME = re.compile(r"\d{6}\.jsonl")


@dataclass(frozen=True, slots=True)
class TornTail:
    """What a crash left after the last valid record."""

    file: str
    record: int
    """Number of the first record that is incomplete."""
    offset: int
    """Byte of `file` where the torn tail begins."""
    num_bytes: int
    """From `offset` to the end of the file."""

    def __str__(self) -> str:
        return f"{self.file}: {self.num_bytes} bytes torn at record {self.record}, byte {self.offset}"


@dataclass(frozen=True, slots=True)
class Contents:
    """The longest valid prefix of a journal."""

    header: Header
    records: list[RunRecord]
    torn: TornTail | None = None
    is_header_damaged: bool = False
    """Whether the header was read from its copy."""


@contextmanager
def store_errors(what: str, path: Path) -> Iterator[None]:
    """Turn an error of the operating system into a `StoreError` that says what was tried."""
    try:
        yield
    except OSError as error:
        raise StoreError(f"cannot {what} {path}: {error.strerror or error}") from error


def check_space(folder: Path, min_free_bytes: int) -> None:
    """Raise `StoreError` if the disk of `folder` has less than `min_free_bytes` free."""
    with store_errors("look at the disk of", folder):
        disk = os.statvfs(folder)
    free = disk.f_bavail * disk.f_frsize
    if free < min_free_bytes:
        raise StoreError(f"the disk of {folder} has {free:,} bytes free; at least {min_free_bytes:,} are needed")


class FolderLock:
    """Exclusive use of a journal folder by this process, until released or until the process ends."""

    def __init__(self, folder: Path) -> None:
        refuse_link(folder)
        with store_errors("lock", folder):
            self._descriptor = writable(folder / LOCK, os.O_RDWR | os.O_CREAT)
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = os.pread(self._descriptor, 32, 0).decode(errors="replace").strip()
                self.release()
                raise FolderBusy(
                    f"{folder} is being written by another run (process {holder or 'unknown'}); wait for it or stop it"
                ) from None
            os.truncate(self._descriptor, 0)
            os.pwrite(self._descriptor, b"%d\n" % os.getpid(), 0)

    def release(self) -> None:
        """Release the lock. May be called repeatedly."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


# -- reading ----------------------------------------------------------------------------------------------------------


def file_paths(folder: Path) -> list[Path]:
    """The files of a journal in order. Raises `StoreError` if there is none."""
    with store_errors("read the journal", folder):
        refuse_link(folder)
        paths = sorted(path for path in folder.iterdir() if _FILE_NAME.fullmatch(path.name))
    if not paths:
        raise StoreError(f"{folder} holds no journal: nothing was done in that run; start it anew")
    return paths


def open_file(path: Path) -> BinaryIO:
    """One file of a journal, for reading."""
    return open_plain(path, max_bytes=MAX_FILE_BYTES)


def raw_lines(file: BinaryIO) -> Iterator[bytes]:
    """The lines of a file as it is now, in pieces where they are longer than any record. Lines that a writer adds
    meanwhile are not seen."""
    left = os.fstat(file.fileno()).st_size - file.tell()
    begun = bytearray()
    while left > 0 and (block := file.read(min(left, BLOCK_BYTES))):
        left -= len(block)
        end, *lines = block.split(b"\n")
        begun += end
        if lines:
            yield bytes(begun) + b"\n"
            begun = bytearray(lines.pop())
            for line in lines:
                yield line + b"\n"
        elif len(begun) > MAX_LINE_BYTES:
            yield bytes(begun)
            begun.clear()
    if begun:
        yield bytes(begun)


def is_begun(folder: Path) -> bool:
    """Whether anything was ever recorded in `folder`. A crash may come before the first header is complete."""
    first, second = folder / file_name(0), folder / file_name(1)
    with store_errors("read the journal", folder):
        if os.path.lexists(second) or not os.path.lexists(first):
            return os.path.lexists(second)
        with open_file(first) as file:
            raw = next(raw_lines(file), b"")
            if (copy := header_copy(folder)) and os.fstat(file.fileno()).st_size >= len(copy):
                return True
    return raw.endswith(b"\n") or not _HEADER_BEGINS.startswith(raw[9 : 9 + len(_HEADER_BEGINS)])


def header_copy(folder: Path) -> bytes:
    """The copy of a journal's first line; empty = there is none that is whole."""
    path = folder.parent / COPY
    with store_errors("read", path):
        raw = read_plain(path, max_bytes=MAX_COPY_BYTES) if os.path.lexists(path) else b""
    return raw if parse(raw) else b""


def write_header_copy(folder: Path, header: Header) -> None:
    """Write the first line of a journal that begins with `header` beside its folder, durably."""
    path = folder.parent / COPY
    with store_errors("write", path), new_plain(path) as file:
        file.write(frame(0, None, encode(header)))
        file.flush()
        os.fsync(file.fileno())


def accepted_in(folder: Path) -> Iterator[Accepted]:
    """The records of accepted inputs in a journal. Other records are not decoded."""
    for path in file_paths(folder):
        with store_errors("read", path), open_file(path) as file:
            for raw in raw_lines(file):
                line = parse(raw) if _ACCEPTED in raw[:MAX_FRAME] else None
                record = None if line is None else decode(line.body)
                if isinstance(record, Accepted):
                    yield record


def damaged_header(folder: Path) -> str:
    """What is wrong with the first line of a journal that is read by its copy."""
    return f"{folder / file_name(0)}: its first line is damaged, and {COPY} is read for it; {_advice(folder)}"


class Reader:
    """Iterates over the records of a journal, without headers and seals.

    At the end, `position` is the end of the longest valid prefix, and `torn` is what comes after it. Raises
    `StoreError` on another format version and on damage that a crash cannot explain. It takes no lock: the run may be
    going on.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.position = Position()
        self.torn: TornTail | None = None
        self.is_sealed = False
        """Whether the last file is sealed."""
        self._copy = b""
        """The first line, where it is damaged."""
        self._files = file_paths(folder)
        for index, path in enumerate(self._files):
            if path.name != file_name(index):
                raise StoreError(f"{folder} has {path.name} but not {file_name(index)}; {_advice(folder)}")
        self.header = self._read_header()

    def __iter__(self) -> Iterator[RunRecord]:
        for index, path in enumerate(self._files):
            if index:
                self._refuse_unless(self.is_sealed, "another file follows, and this one is not sealed")
                self.position.turn()
                self.is_sealed = False
            with store_errors("read", path), open_file(path) as file:
                yield from self._read(file)

    @property
    def is_header_damaged(self) -> bool:
        """Whether the header was read from its copy."""
        return bool(self._copy)

    def _read_header(self) -> Header:
        with store_errors("read", self._files[0]), open_file(self._files[0]) as file:
            raw = next(raw_lines(file), b"")
        if not is_begun(self.folder):
            raise StoreError(f"{self.folder} holds no whole record: nothing was done in that run; start it anew")
        if not parse(raw):
            raw = self._copy = header_copy(self.folder) or raw
        check_version(raw)
        line = parse(raw)
        self._refuse_unless(line is not None, "its checksum is wrong")
        assert line is not None
        header = decode(line.body)
        self._refuse_unless(isinstance(header, Header), "a journal begins with its header")
        assert isinstance(header, Header)
        return header

    def _read(self, file: BinaryIO) -> Iterator[RunRecord]:
        """The records of one file."""
        lines = raw_lines(file)
        if self._copy and not self.position.file_index:
            file.seek(len(self._copy))
            lines = chain([self._copy], lines)
        for raw in lines:
            record = self._record(raw)
            if record is None:
                self._tear(raw, lines, os.fstat(file.fileno()).st_size)
                return
            self.position.advance(record, raw)
            if is_of_tree(record) or not isinstance(record, Header | Sealed):
                yield record

    def _record(self, raw: bytes) -> Record | None:
        """The record of a line that must be the next one; None = the line is incomplete or its checksum is wrong."""
        line = parse_number(raw)
        if line is None:
            return None
        number, body = line
        if self.is_sealed:
            raise self._damaged("the file goes on behind its seal")
        if number != self.position.number:
            raise self._damaged(_out_of_place(number, self.position.number))
        try:
            record = decode(body)
        except StoreError as error:
            raise self._damaged(str(error)) from error
        if is_of_tree(record) and self.position.num_records:
            return record
        if isinstance(record, Header) or not self.position.num_records:
            is_in_place = not self.position.num_records and record == self.header
            self._refuse_unless(is_in_place, "every file begins with the header of its run, and has no other")
        if isinstance(record, Sealed):
            is_whole = (record.num_records, record.crc) == (self.position.num_records, self.position.crc)
            self._refuse_unless(is_whole, "the file is not what its seal says")
            self.is_sealed = True
        return record

    def _tear(self, raw: bytes, rest: Iterator[bytes], num_bytes: int) -> None:
        """Handle a bad line: it is the torn tail of the journal if no valid line follows, otherwise damage."""
        is_last = self.position.file_index == len(self._files) - 1
        is_followed = sound_end(raw) or any(parse(line) or sound_end(line) for line in rest)
        is_tail = is_last and not self.is_sealed and not is_followed
        self._refuse_unless(is_tail, "its checksum is wrong" if raw.endswith(b"\n") else "it is cut short")
        position = self.position
        name = file_name(position.file_index)
        self.torn = TornTail(name, position.number, position.num_bytes, num_bytes - position.num_bytes)

    def _refuse_unless(self, is_sound: bool, why: str) -> None:
        if not is_sound:
            raise self._damaged(why)

    def _damaged(self, why: str) -> StoreError:
        path = self._files[self.position.file_index]
        return StoreError(
            f"{path} is damaged at record {self.position.number}, byte {self.position.num_bytes}: {why}; "
            f"{_advice(self.folder)}"
        )


def _out_of_place(found: int, expected: int) -> str:
    if found > expected:
        return f"record {expected} is missing, {found} follows"
    return f"record {found} is there again or out of place"


def _advice(folder: Path) -> str:
    return f"`ramify repair {folder.parent}` keeps the rest"


def read(folder: Path) -> Contents:
    """Everything in the journal of `folder` up to its longest valid prefix. See `Reader` for what it raises."""
    reader = Reader(folder)
    records = list(reader)
    return Contents(reader.header, records, reader.torn, reader.is_header_damaged)


# -- writing ----------------------------------------------------------------------------------------------------------


class Journal:
    """A journal open for writing. The caller must close it. Its methods may be called from any thread."""

    def __init__(self, folder: Path, lines: Lines, *, lock: FolderLock, writing: Writing) -> None:
        self.folder = folder
        self._lines = lines
        self._lock = lock
        self._commit = GroupCommit(folder, lines.number, writing)
        self._order = threading.Lock()
        self._is_closed = False

    @classmethod
    def create(
        cls, folder: Path, header: Header, *, writing: Writing | None = None, lock: FolderLock | None = None
    ) -> "Journal":
        """Begin a journal in `folder`, which is created if needed. The header is durable when this returns.

        `lock` is for a caller that already holds the lock; the journal releases it.
        """
        writing = writing or Writing()
        with store_errors("make", folder):
            folder.mkdir(parents=True, exist_ok=True)
            sync_folder(folder.parent)
        lock = lock or FolderLock(folder)
        try:
            check_space(folder, writing.min_free_bytes)
            if is_begun(folder):
                raise StoreError(f"{folder} holds a journal already; resume it or choose another folder")
            with store_errors("empty", folder):
                (folder / file_name(0)).unlink(missing_ok=True)
            return cls._begun(folder, _lines(header, Position(), writing), lock=lock, writing=writing)
        except BaseException:
            lock.release()
            raise

    @classmethod
    def _begun(cls, folder: Path, lines: Lines, *, lock: FolderLock, writing: Writing) -> "Journal":
        journal = cls(folder, lines, lock=lock, writing=writing)
        try:
            journal._commit.put(lines.begin())
            journal.sync()
        except StoreError:
            with suppress(StoreError):
                journal.close()
            raise
        return journal

    @classmethod
    def resume(
        cls, folder: Path, *, writing: Writing | None = None, read: Callable[[RunRecord], None] | None = None
    ) -> tuple["Journal", Contents]:
        """Open the journal of `folder` to continue after its longest valid prefix. A torn tail is cut off.

        If `read` is given, it is called with every record, and the records are not collected. If it raises an error,
        the journal stays as it was.
        """
        writing = writing or Writing()
        lock = FolderLock(folder)
        try:
            check_space(folder, writing.min_free_bytes)
            reader = Reader(folder)
            records: list[RunRecord] = []
            for record in reader:
                (read or records.append)(record)
            if reader.torn is not None:
                _cut(folder / reader.torn.file, reader.torn.offset)
            if reader.is_sealed:
                reader.position.turn()
            lines = _lines(reader.header, reader.position, writing)
            contents = Contents(reader.header, records, reader.torn, reader.is_header_damaged)
            return cls(folder, lines, lock=lock, writing=writing), contents
        except BaseException:
            lock.release()
            raise

    def append(self, record: RunRecord) -> int:
        """Number the record and queue it for writing; never waits for the disk.

        Raises `StoreError` if the record cannot be written or the journal has stopped. Such a record is not accepted.
        """
        with self._order:
            lines = self._lines.add(record)
            self._commit.put(lines)
        return lines[-1].number

    async def synced(self, number: int) -> None:
        """Return when record `number` is durable. Raises `StoreError` if it could not be saved."""
        await self._commit.synced(number)

    async def room(self) -> None:
        """Return when the disk keeps up. Await it before starting new work."""
        await self._commit.room()

    def sync(self) -> None:
        """Return when everything appended is durable; blocks. Raises `StoreError` if it could not be saved."""
        self._commit.sync(self._lines.number - 1)

    @property
    def unsaved(self) -> list[bytes]:
        """The lines that may not be on disk."""
        return self._commit.unsaved

    def close(self) -> None:
        """Write the waiting lines, seal the file and release the folder. Raises `StoreError` if something is not
        saved."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            self._commit.close(self._lines.seal())
        finally:
            self._lock.release()


def _lines(header: Header, position: Position, writing: Writing) -> Lines:
    return Lines(header, position, max_file_bytes=writing.max_file_bytes, max_record_bytes=writing.max_record_bytes)


def _cut(path: Path, num_bytes: int) -> None:
    """Shorten a file, durably."""
    with store_errors("cut the torn tail off", path), path.open("r+b") as file:
        file.truncate(num_bytes)
        os.fsync(file.fileno())
