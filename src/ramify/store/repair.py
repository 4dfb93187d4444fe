"""Repair: a damaged journal written anew with all that can still be trusted.

Kept is every record with a right checksum whose tree misses none before it, so that each tree is its longest prefix
that replays; a tree without its beginning is dropped. Lines out of place are put back, doubled ones left out. The
damaged journal stays beside the new one, and the report names everything that was lost.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from ramify.core.errors import StoreError
from ramify.store.commit import sync_folder
from ramify.store.framing import check_version, decode, parse, sound_end
from ramify.store.journal import FolderLock, Journal, Reader, file_paths, raw_lines, store_errors
from ramify.store.records import Header, OpenedRecord, Record, RunRecord, Sealed, TreeRecord

NUM_IN_FLIGHT = 1024
"""Records handed to the new journal before its writer is waited for."""


class BadLine(NamedTuple):
    """A line whose checksum is wrong."""

    file: str
    offset: int
    num_bytes: int


@dataclass(slots=True)
class Repair:
    """What became of a journal."""

    num_kept: int = 0
    """Records of trees."""
    bad_lines: list[BadLine] = field(default_factory=list)
    num_doubled: int = 0
    missing: list[int] = field(default_factory=list)
    """Numbers of lines that are nowhere, as far as later ones tell."""
    cut_trees: dict[int, int] = field(default_factory=dict)
    """Tree -> sound records dropped because one before them is missing; it goes on from there when resumed."""
    dropped_trees: dict[int, int] = field(default_factory=dict)
    """Tree whose first record is missing -> sound records dropped; it grows anew when resumed."""
    backup: Path | None = None
    """The damaged journal; None = nothing was wrong and nothing was changed."""

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
    """Repair the journal in `folder` if it needs it, torn tails included.

    Raises `StoreError` if it is in use, of another format version or without any header.
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
    """A repair that was killed between its two renames had written all of the new journal."""
    if not folder.exists() and _repaired(folder).exists():
        with store_errors("rename", _repaired(folder)):
            _repaired(folder).rename(folder)


def _survey(folder: Path, report: Repair) -> list[SoundLine]:
    """Every sound line once, in order of number. Fills in what is bad, doubled or missing."""
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
    with store_errors("read", path), path.open("rb") as file:
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
    return reader.torn is None


def _rewrite(folder: Path, lines: list[SoundLine], report: Repair) -> None:
    """Write what is kept to a folder beside the journal."""
    header = next((record for _, _, record in _records(lines) if isinstance(record, Header)), None)
    if header is None:
        raise StoreError(f"the journal {folder} cannot be repaired: no header is left in it")
    target = _repaired(folder)
    with store_errors("empty", target):
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


def _records(lines: list[SoundLine]) -> Iterator[tuple[int, int | None, Record]]:
    """(number, number of the tree's record before, record) of every line, read one at a time."""
    for number, path, offset in lines:
        with store_errors("read", path), path.open("rb") as file:
            file.seek(offset)
            line = parse(file.readline())
        assert line is not None
        yield number, line.after, decode(line.body)


def _kept(lines: list[SoundLine], report: Repair) -> Iterator[RunRecord]:
    """The records whose tree misses none before them, and those of no tree; the others are counted."""
    last: dict[int, int] = {}
    lost: dict[int, int] = {}
    for number, after, record in _records(lines):
        if isinstance(record, Header | Sealed):
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
    """Put the new journal in the place of the damaged one, which is kept."""
    backups = (
        folder.with_name(f"{folder.name}.damaged{suffix}") for suffix in ("", *map("-{}".format, range(2, 1000)))
    )
    backup = next(path for path in backups if not path.exists())
    with store_errors("exchange", folder):
        folder.rename(backup)
        _repaired(folder).rename(folder)
        sync_folder(folder.parent)
    report.backup = backup
