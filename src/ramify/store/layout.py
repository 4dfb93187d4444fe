"""Layout: where the journals of a run folder are: in the folder itself, or in the folders of its shards.

A divided run keeps its configuration, `shards.json` and one ordinary run folder per shard (`shards/0`, `shards/1`,
...). Each shard has its own journal, so every journal has one writer. `shards.json` is written last: a run without it
has not begun. `shards.copy` holds it once more, with a checksum: where the two differ, the copy is read.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from ramify.core.errors import StoreError
from ramify.core.shard import WHOLE, Shard, shards_of
from ramify.store.commit import sync_folder
from ramify.store.framing import frame, parse
from ramify.store.journal import FolderLock, Reader, damaged_header, is_begun, store_errors
from ramify.store.plain_file import new_plain, read_plain, refuse_link
from ramify.store.records import Header, OpenedRecord, RunRecord

JOURNAL = "journal"
SHARDS = "shards"
LAYOUT = "shards.json"
LAYOUT_DRAFT = "shards.json.part"
LAYOUT_COPY = "shards.copy"
"""The content of `shards.json` once more, as a line with a checksum."""
MAX_LAYOUT_BYTES = 16 * 2**20


class Layout(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a divided run began with."""

    num_shards: int
    header: Header
    """The header of each shard's journal, without the shard."""


class RunPart(NamedTuple):
    """One journal of a run."""

    path: Path
    """The folder that holds it."""
    shard: Shard


def is_sharded(path: Path) -> bool:
    """Whether the run at `path` is divided. Raises `StoreError` if the folder cannot be read."""
    with store_errors("look into", path):
        return os.path.lexists(path / LAYOUT)


def shard_path(path: Path, index: int) -> Path:
    return path / SHARDS / str(index)


def layout_of(path: Path) -> Layout:
    """How the run at `path` is divided. Raises `StoreError` if neither its `shards.json` nor the copy can be read."""
    text, copied = _layout_texts(path)
    try:
        layout = msgspec.json.decode(copied or text, type=Layout)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise StoreError(f"{path / LAYOUT} is not what a run writes: {error}; put it back") from error
    if layout.num_shards < 1:
        raise StoreError(f"{path / LAYOUT} says {layout.num_shards!r} shards; put it back")
    return layout


def write_layout(path: Path, layout: Layout) -> None:
    """Write `shards.json` and its copy as a whole and durably. The run has begun when this returns."""
    body = msgspec.json.encode(layout)
    with store_errors("write", path / LAYOUT_COPY):
        _write(path / LAYOUT_COPY, frame(0, None, body))
    _replace_layout(path, msgspec.json.format(body))


def repair_layout(path: Path) -> bool:
    """Write a damaged `shards.json` again from its copy. Whether it was damaged. Raises `FolderBusy` if a process grows
    the run."""
    text, copied = _layout_texts(path)
    if copied in (b"", text):
        return False
    lock = FolderLock(path / SHARDS)
    try:
        _replace_layout(path, copied)
    finally:
        lock.release()
    return True


def _layout_texts(path: Path) -> tuple[bytes, bytes]:
    """What `shards.json` holds, and what its copy says that it holds; empty = there is no copy that is whole."""
    with store_errors("read", path / LAYOUT):
        text = read_plain(path / LAYOUT, max_bytes=MAX_LAYOUT_BYTES)
    with store_errors("read", path / LAYOUT_COPY):
        has_copy = os.path.lexists(path / LAYOUT_COPY)
        line = parse(read_plain(path / LAYOUT_COPY, max_bytes=MAX_LAYOUT_BYTES)) if has_copy else None
    return text, b"" if line is None else msgspec.json.format(line.body)


def _replace_layout(path: Path, text: bytes) -> None:
    with store_errors("write", path / LAYOUT):
        _write(path / LAYOUT_DRAFT, text)
        (path / LAYOUT_DRAFT).replace(path / LAYOUT)
        sync_folder(path)


def _write(path: Path, data: bytes) -> None:
    with new_plain(path) as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def parts(path: Path) -> list[RunPart]:
    """The journals of the run at `path` that have begun: its own, or those of its shards."""
    if is_sharded(path):
        refuse_link(path / SHARDS)
        for index in range(layout_of(path).num_shards):
            refuse_link(shard_path(path, index))
        every = [RunPart(shard_path(path, shard.index), shard) for shard in shards_of(layout_of(path).num_shards)]
        return [part for part in every if is_begun(part.path / JOURNAL)]
    return [RunPart(path, shard_of(Reader(path / JOURNAL).header))]


def read_by_copy(path: Path) -> list[str]:
    """What of the run is damaged and read by its copy: its `shards.json`, and the first lines of its journals."""
    folders = [part.path / JOURNAL for part in parts(path)]
    return [*damaged_layout(path), *(damaged_header(folder) for folder in folders if Reader(folder).is_header_damaged)]


def damaged_layout(path: Path) -> list[str]:
    """What is wrong with `shards.json`, where its copy is read for it. Empty = nothing is, or there is none."""
    text, copied = _layout_texts(path) if is_sharded(path) else (b"", b"")
    told = f"{path / LAYOUT} is damaged, and {LAYOUT_COPY} is read for it; `ramify repair {path}` writes it again"
    return [told] if copied not in (b"", text) else []


def shard_of(header: Header) -> Shard:
    """Which part of its run a journal holds."""
    return WHOLE if header.shard is None else Shard(header.shard.index, header.shard.count)


def records(part: RunPart) -> Iterator[RunRecord]:
    """The records of one journal. Raises `StoreError` on a tree that belongs to another shard."""
    for record in Reader(part.path / JOURNAL):
        if isinstance(record, OpenedRecord) and not part.shard.owns(record.tree):
            raise StoreError(
                f"{part.path} is shard {part.shard.index} of {part.shard.count} and holds tree {record.tree}, which is "
                "another's; put the folders of the shards back"
            )
        yield record
