"""Repair: write a damaged journal again with everything that can still be trusted.

A record is kept if its checksum is right and no earlier record of its tree is missing. So each tree is its longest
prefix that can be replayed; a tree without its beginning is dropped. Lines out of place are put back, and duplicates
are left out. The damaged journal stays beside the new one, and the report names everything that was lost.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from ramify.core.errors import StoreError
from ramify.store.commit import sync_folder
from ramify.store.framing import check_version, decode, parse, sound_end
from ramify.store.journal import (
    FolderLock,
    Journal,
    Reader,
    file_paths,
    header_copy,
    open_file,
    raw_lines,
    store_errors,
)
from ramify.store.plain_file import refuse_link
from ramify.store.records import FileRecord, Header, OpenedRecord, Record, RunRecord, TreeRecord

NUM_IN_FLIGHT = 1024
"""Records to queue before waiting for the new journal's writer."""


class BadLine(NamedTuple):
    """A line whose checksum is wrong."""

    file: str
    offset: int
    num_bytes: int


@dataclass(slots=True)
class Repair:
    """What happened to a journal."""

    num_kept: int = 0
    """Number of records kept, without headers and seals."""
    bad_lines: list[BadLine] = field(default_factory=list)
    num_doubled: int = 0
    missing: list[int] = field(default_factory=list)
    """Numbers of missing lines, as far as later lines show them."""
    cut_trees: dict[int, int] = field(default_factory=dict)
    """Tree -> valid records dropped because an earlier one is missing. When resumed, the tree continues from there."""
    dropped_trees: dict[int, int] = field(default_factory=dict)
    """Tree whose first record is missing -> valid records dropped. When resumed, the tree grows again from the
    start."""
    backup: Path | None = None
    """Folder of the damaged journal; None = nothing was wrong and nothing was changed."""

    def __str__(self) -> str:
        if self.backup is None:
            return "the journal is whole; nothing was changed"
        bad = ", ".join(f"{line.file} byte {line.offset} ({line.num_bytes} bytes)" for line in self.bad_lines)
        return "; ".join(
            (
                f"{self.num_kept} records kept",
                f"lines with a wrong checksum: {bad or 'none'}",
                f"missing lines: {', '.join(map(str, self.missing)) or 'none'}",
                f"doubled lines: {self.num_doubled}",
                f"trees cut short: {_counts(self.cut_trees)}",
                f"trees dropped, to be grown anew: {_counts(self.dropped_trees)}",
                f"the damaged journal is kept in {self.backup}",
            )
        )


def _counts(trees: dict[int, int]) -> str:
    return ", ".join(f"{tree} ({count} records lost)" for tree, count in sorted(trees.items())) or "none"


class SoundLine(NamedTuple):
    """Where a line with a right checksum is."""

    number: int
    path: Path
    offset: int


def repair(folder: Path) -> Repair:
    """Repair the journal in `folder` if needed; torn tails are repaired too.

    Raises `StoreError` if it is in use, has another format version or has no header.
    """
    _finish_earlier(folder)
    lock = FolderLock(folder)
    try:
        report = Repair()
        lines = _survey(folder, report)
        if not _is_whole(folder):
            _rewrite(folder, lines, report)
            _exchange(folder, report)
        return report
    finally:
        lock.release()


def _repaired(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.repaired")


def _finish_earlier(folder: Path) -> None:
    """Finish a repair that was killed between its two renames: its new journal is already complete."""
    if not folder.exists() and _repaired(folder).exists():
        with store_errors("rename", _repaired(folder)):
            _repaired(folder).rename(folder)


def _survey(folder: Path, report: Repair) -> list[SoundLine]:
    """Every valid line once, in order of number. Enters bad, doubled and missing lines in `report`."""
    lines: dict[int, SoundLine] = {}
    for path in file_paths(folder):
        for offset, raw in _raw_lines(path):
            if not offset:
                check_version(raw)
            sound = raw if parse(raw) else sound_end(raw)
            bad = len(raw) - len(sound)
            if bad:
                report.bad_lines.append(BadLine(path.name, offset, bad))
            line = parse(sound)
            if line is not None:
                report.num_doubled += line.number in lines
                lines.setdefault(line.number, SoundLine(line.number, path, offset + bad))
    report.missing = [number for number in range(max(lines, default=0)) if number not in lines]
    return [lines[number] for number in sorted(lines)]


def _raw_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """The lines of a file with their offsets."""
    offset = 0
    with store_errors("read", path), open_file(path) as file:
        for raw in raw_lines(file):
            yield offset, raw
            offset += len(raw)


def _is_whole(folder: Path) -> bool:
    try:
        reader = Reader(folder)
        for _ in reader:
            pass
    except StoreError:
        return False
    return reader.torn is None and not reader.is_header_damaged


def _rewrite(folder: Path, lines: list[SoundLine], report: Repair) -> None:
    """Write the kept records to a folder beside the journal."""
    header = next((record for _, _, record in _records(lines) if isinstance(record, Header)), None) or _copied(folder)
    if header is None:
        raise StoreError(f"the journal {folder} cannot be repaired: no header is left in it")
    target = _repaired(folder)
    with store_errors("empty", target):
        refuse_link(target)
        for left_over in target.glob("*"):
            left_over.unlink()
    journal = Journal.create(target, header)
    try:
        for record in _kept(lines, report):
            journal.append(record)
            report.num_kept += 1
            if report.num_kept % NUM_IN_FLIGHT == 0:
                journal.sync()
    finally:
        journal.close()


def _copied(folder: Path) -> Header | None:
    """The header of the copy; None = there is none."""
    line = parse(header_copy(folder))
    record = None if line is None else decode(line.body)
    return record if isinstance(record, Header) else None


def _records(lines: list[SoundLine]) -> Iterator[tuple[int, int | None, Record]]:
    """(number, number of the tree's previous record, record) of every line, read one at a time."""
    for number, path, offset in lines:
        with store_errors("read", path), open_file(path) as file:
            file.seek(offset)
            line = parse(file.readline())
        assert line is not None
        yield number, line.after, decode(line.body)


def _kept(lines: list[SoundLine], report: Repair) -> Iterator[RunRecord]:
    """The records whose tree misses none before them, and those that belong to no tree. The others are counted."""
    last: dict[int, int] = {}
    lost: dict[int, int] = {}
    for number, after, record in _records(lines):
        if isinstance(record, FileRecord):
            continue
        if not isinstance(record, TreeRecord):
            yield record
            continue
        tree = record.tree
        if after == last.get(tree) and (after is not None or isinstance(record, OpenedRecord)):
            last[tree] = number
            yield record
        else:
            lost[tree] = lost.get(tree, 0) + 1
    report.cut_trees = {tree: count for tree, count in lost.items() if tree in last}
    report.dropped_trees = {tree: count for tree, count in lost.items() if tree not in last}


def _exchange(folder: Path, report: Repair) -> None:
    """Put the new journal in the place of the damaged one. The damaged one is kept."""
    backups = (
        folder.with_name(f"{folder.name}.damaged{suffix}") for suffix in ("", *map("-{}".format, range(2, 1000)))
    )
    backup = next(path for path in backups if not path.exists())
    with store_errors("exchange", folder):
        folder.rename(backup)
        _repaired(folder).rename(folder)
        sync_folder(folder.parent)
    report.backup = backup
