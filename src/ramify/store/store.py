"""Store: a run on disk or in memory. The run is what is recorded there.

A run folder holds the resolved configuration as it was given, `journal/` and `log.jsonl`. A new run never begins in a
folder that holds anything else, and never over another run. A folder in which a crash came before the first record
counts as new. The configuration cannot change during a run: its hash is in the journal's header. A run that is divided
(`layout`) is read like any other; it is written shard by shard.
"""

import hashlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Literal, Protocol

import msgspec

from ramify.core.errors import StoreError
from ramify.store.commit import Writing, sync_folder
from ramify.store.journal import (
    COPY,
    LOCK,
    Contents,
    FolderLock,
    Journal,
    Reader,
    TornTail,
    is_begun,
    read,
    store_errors,
    write_header_copy,
)
from ramify.store.layout import (
    JOURNAL,
    LAYOUT,
    LAYOUT_COPY,
    LAYOUT_DRAFT,
    SHARDS,
    is_sharded,
    layout_of,
    parts,
    records,
)
from ramify.store.plain_file import new_plain, read_plain, refuse_link, refuse_strangers_link
from ramify.store.records import Header, RunRecord

LOG = "log.jsonl"
MAX_CONFIG_BYTES = 256 * 2**20
"""A configuration may hold the questions themselves."""
ConfigName = Literal["config.toml", "config.json"]
CONFIGS: tuple[ConfigName, ...] = ("config.toml", "config.json")


class Store(Protocol):
    """Takes the records of a run in order."""

    @property
    def header(self) -> Header: ...

    def append(self, record: RunRecord) -> int:
        """Accept the next record and return its number; never waits. Raises `StoreError` if it cannot be accepted."""
        ...

    async def synced(self, number: int) -> None:
        """Return when the record with that number would survive the end of the process."""
        ...

    async def room(self) -> None:
        """Return when new work may begin, because the store keeps up with its input."""
        ...

    def sync(self) -> None:
        """Return when every accepted record would survive the end of the process; blocks."""
        ...

    def close(self) -> None:
        """Accept no more records. Raises `StoreError` if something was not saved."""
        ...


class MemoryStore:
    """Keeps the records of a run as a list; for use as a library."""

    def __init__(self, header: Header) -> None:
        self.header = header
        self.records: list[RunRecord] = []

    def append(self, record: RunRecord) -> int:
        self.records.append(record)
        return len(self.records) - 1

    async def synced(self, number: int) -> None: ...

    async def room(self) -> None: ...

    def sync(self) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class SavedRun:
    """What a run folder holds."""

    header: Header
    config: str
    """Text of the resolved configuration."""
    config_name: ConfigName
    records: list[RunRecord]
    torn: TornTail | None = None
    """What a crash left at the end of the journal, if anything."""
    is_header_damaged: bool = False
    """Whether the header was read from its copy."""


class FolderStore:
    """A run folder open for writing. The caller must close it."""

    def __init__(self, path: Path, header: Header, journal: Journal) -> None:
        self.path = path
        self.header = header
        self.log_path = path / LOG
        self._journal = journal

    @classmethod
    def create(
        cls,
        path: Path,
        header: Header,
        config: str,
        *,
        config_name: ConfigName = "config.toml",
        writing: Writing | None = None,
    ) -> "FolderStore":
        """Begin a run in a new or empty folder. The hash of `config` is put into the header.

        Raises `StoreError` if the folder holds a run or anything else, or cannot be written.
        """
        header = msgspec.structs.replace(header, config_hash=config_hash(config))
        refuse_occupied(path)
        with store_errors("make the run folder", path):
            (path / JOURNAL).mkdir(parents=True, exist_ok=True)
            sync_folder(path.parent)
        lock = FolderLock(path / JOURNAL)
        try:
            refuse_occupied(path)
            with store_errors("write the configuration to", path):
                for left_over in CONFIGS:
                    (path / left_over).unlink(missing_ok=True)
                write_text(path / config_name, config)
            write_header_copy(path / JOURNAL, header)
            return cls(path, header, Journal.create(path / JOURNAL, header, writing=writing, lock=lock))
        except BaseException:
            lock.release()
            raise

    @classmethod
    def resume(
        cls, path: Path, *, writing: Writing | None = None, read: Callable[[RunRecord], None] | None = None
    ) -> tuple["FolderStore", SavedRun]:
        """Open a run to continue it. A torn tail is cut off and reported. If `read` is given, it is called with every
        record, and the records are not collected.

        Raises `StoreError` if another process writes the run, if it is damaged, or if its configuration was changed.
        """
        _refuse_unless_run(path)
        _refuse_divided(path)
        journal, contents = Journal.resume(path / JOURNAL, writing=writing, read=read)
        try:
            return cls(path, contents.header, journal), _saved(path, contents)
        except BaseException:
            journal.close()
            raise

    def append(self, record: RunRecord) -> int:
        return self._journal.append(record)

    async def synced(self, number: int) -> None:
        await self._journal.synced(number)

    async def room(self) -> None:
        await self._journal.room()

    def sync(self) -> None:
        self._journal.sync()

    @property
    def unsaved(self) -> list[bytes]:
        """The lines that may not be on disk."""
        return self._journal.unsaved

    def close(self) -> None:
        self._journal.close()


def load(path: Path) -> SavedRun:
    """Everything a run folder holds, read-only; the run may still be going on. For a divided run, give the folder of
    one shard."""
    _refuse_unless_run(path)
    _refuse_divided(path)
    return _saved(path, read(path / JOURNAL))


def stream(path: Path) -> Iterator[RunRecord]:
    """The records of a run folder one by one, for runs larger than memory. A divided run is read one shard after
    another."""
    _refuse_unless_run(path)
    return chain.from_iterable(map(records, parts(path)))


def header_and_config(path: Path) -> tuple[Header, str]:
    """What a run began with. Its records are not read."""
    _refuse_unless_run(path)
    header = layout_of(path).header if is_sharded(path) else Reader(path / JOURNAL).header
    return header, _config(path, header)[1]


def config_hash(config: str) -> str:
    """SHA-256 of a configuration's text."""
    return hashlib.sha256(config.encode("utf-8", errors="replace")).hexdigest()


def _saved(path: Path, contents: Contents) -> SavedRun:
    name, config = _config(path, contents.header)
    return SavedRun(contents.header, config, name, contents.records, contents.torn, contents.is_header_damaged)


def _config(path: Path, header: Header) -> tuple[ConfigName, str]:
    """Name and text of the configuration, which must be the one the run began with."""
    name = _config_name(path)
    with store_errors("read", path / name):
        config = read_plain(path / name, max_bytes=MAX_CONFIG_BYTES).decode("utf-8", errors="replace")
    if config_hash(config) != header.config_hash:
        raise StoreError(f"{path / name} is not what the run began with; put it back, or start another run")
    return name, config


def _config_name(path: Path) -> ConfigName:
    with store_errors("look into", path):
        for name in CONFIGS:
            if os.path.lexists(path / name):
                return name
    raise StoreError(f"{path} has no configuration: neither {' nor '.join(CONFIGS)} is there; put it back")


def _refuse_unless_run(path: Path) -> None:
    with store_errors("look into", path):
        refuse_strangers_link(path)
        refuse_link(path / JOURNAL)
        is_run = (path / JOURNAL).is_dir()
    if not is_run and not is_sharded(path):
        raise StoreError(f"{path} is no run: it has no {JOURNAL} folder")


def _refuse_divided(path: Path) -> None:
    if is_sharded(path):
        raise StoreError(f"{path} is a run of several shards; each is a run folder of its own in {path / SHARDS}")


def refuse_occupied(path: Path) -> None:
    """Raise `StoreError` unless a run may begin at `path`."""
    with store_errors("look into", path):
        refuse_strangers_link(path)
        for folder in (JOURNAL, SHARDS):
            refuse_link(path / folder)
        names = {entry.name for entry in path.iterdir()} if path.exists() else set[str]()
        if SHARDS in names:
            names |= {f"{SHARDS}/{entry.name}" for entry in (path / SHARDS).iterdir() if entry.name != LOCK}
    if LAYOUT in names or (JOURNAL in names and is_begun(path / JOURNAL)):
        raise StoreError(f"{path} holds a run already; go on with `ramify resume {path}` or choose another folder")
    foreign = sorted(names - {JOURNAL, COPY, LOG, SHARDS, LAYOUT_COPY, LAYOUT_DRAFT, *CONFIGS})
    if foreign:
        raise StoreError(f"{path} is not empty and no run (it holds {foreign[0]!r}); choose a new folder")


def write_text(path: Path, text: str) -> None:
    """Write a small file as a whole and durably, byte for byte."""
    with new_plain(path) as file:
        file.write(text.encode("utf-8", errors="replace"))
        file.flush()
        os.fsync(file.fileno())
    sync_folder(path.parent)
