"""Rewind: cut off the journal of a run after one of its records, so the run continues from there.

The whole old journal is renamed and kept beside the new one. If the process is killed at any moment, either journal is
in place, or `finish_rewind` puts one in place.
"""

import os
import shutil
from collections.abc import Callable
from itertools import count
from pathlib import Path

from ramify.core.errors import StoreError
from ramify.store.commit import sync_folder
from ramify.store.framing import Position, file_name
from ramify.store.journal import FolderLock, Reader, open_file, store_errors
from ramify.store.records import RunRecord
from ramify.store.store import JOURNAL

CUT = "journal.cut"


def rewind(path: Path, is_last: Callable[[RunRecord], bool]) -> Path | None:
    """Make the last record for which `is_last` is true the end of the journal of the run `path`.

    Returns where the old journal was put; None = nothing came after that record. Raises `StoreError` if there is no
    such record, if another process writes the run, or if the disk is full; nothing is changed then.
    """
    folder = path / JOURNAL
    finish_rewind(path)
    lock = FolderLock(folder)
    try:
        end, is_at_end = _end(folder, is_last)
        if is_at_end:
            return None
        with store_errors("cut", folder):
            _copy(folder, path / CUT, end)
        return exchange(path)
    finally:
        lock.release()


def finish_rewind(path: Path) -> None:
    """Finish a rewind that was killed. Between its two renames, the new journal is complete and is put in place. Before
    them, an incomplete copy is deleted."""
    with store_errors("finish the rewind of", path):
        if not (path / CUT).exists():
            return
        if (path / JOURNAL).exists():
            shutil.rmtree(path / CUT)
        else:
            (path / CUT).rename(path / JOURNAL)
            sync_folder(path)


def _end(folder: Path, is_last: Callable[[RunRecord], bool]) -> tuple[Position, bool]:
    """Where the wanted record ends, and whether nothing comes after it."""
    reader = Reader(folder)
    end: Position | None = None
    num_behind = 0
    for record in reader:
        num_behind += 1
        if is_last(record):
            position = reader.position
            end, num_behind = Position(file_index=position.file_index, num_bytes=position.num_bytes), 0
    if end is None:
        raise StoreError(f"{folder} has no record to go back to; start the run anew")
    return end, not num_behind


def _copy(folder: Path, target: Path, end: Position) -> None:
    """Copy the files of a journal up to `end` to a new folder, durably."""
    target.mkdir()
    for index in range(end.file_index + 1):
        name = file_name(index)
        with open_file(folder / name) as old, (target / name).open("wb") as new:
            shutil.copyfileobj(old, new)
            if index == end.file_index:
                new.truncate(end.num_bytes)
            new.flush()
            os.fsync(new.fileno())
    sync_folder(target)


def exchange(path: Path) -> Path:
    """Put the new journal in the place of the old one. Returns where the old one is kept."""
    kept = next(at for number in count(1) if not (at := path / f"{JOURNAL}.before-{number}").exists())
    with store_errors("exchange the journals of", path):
        (path / JOURNAL).rename(kept)
        (path / CUT).rename(path / JOURNAL)
        sync_folder(path)
    return kept
