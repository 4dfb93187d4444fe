"""Take back: removes from a journal what the run's engines failed, so that a resume asks for it again.

A run that stops for its engines calls this. In every tree that was told of such a failure, all that was asked and told
from there on is removed: the strategy might have asked for something else. Steps of commands that were asked before
stay, also those that were finished later, and are not generated again. The old journal is kept beside the new one; a
kill at any moment leaves one of them in place (`rewind.py`).
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ramify.core.stop import stop_word
from ramify.store.journal import FolderLock, Journal, Reader
from ramify.store.records import AskedRecord, ClosedRecord, GrownRecord, OpenedRecord, OutcomeRecord, RunRecord
from ramify.store.rewind import CUT, exchange, finish_rewind
from ramify.store.store import JOURNAL

ENGINE_ERROR: Final = "engine_error"
"""The stop word of what an engine failed."""
NUM_IN_FLIGHT: Final = 4096
"""Records written between two waits for the disk."""


@dataclass(slots=True)
class TreeFailures:
    """What engines failed in one tree."""

    failed: set[int] = field(default_factory=set[int])
    """Commands."""
    num_asked: int = 0
    """Commands asked before the strategy was told of the first of them."""
    first_told: int | None = None
    """The command whose failure it was told of first."""
    is_cut: bool = False
    """While the journal is copied: whether that outcome has been passed."""


def take_back_failures(path: Path) -> int:
    """Rewrite the journal of the run folder `path` without what its engines failed.

    Returns how many commands will be asked for again. If there are none, the journal stays as it is. Raises
    `StoreError` if another process writes the run or the disk is full; nothing is changed then.
    """
    finish_rewind(path)
    lock = FolderLock(path / JOURNAL)
    try:
        trees = _failures(Reader(path / JOURNAL))
        if trees:
            _write(path, trees)
            exchange(path)
        return sum(len(tree.failed) for tree in trees.values())
    finally:
        lock.release()


def _failures(records: Reader) -> dict[int, TreeFailures]:
    """The trees to change, by index. A tree that was closed before it was told of its failure is not one: another
    fault ended it."""
    trees: dict[int, TreeFailures] = {}
    for record in records:
        match record:
            case OpenedRecord():
                trees[record.tree] = TreeFailures()
            case AskedRecord() if trees[record.tree].first_told is None:
                trees[record.tree].num_asked += len(record.commands)
            case GrownRecord() if record.step.stop == ENGINE_ERROR:
                trees[record.tree].failed.add(record.command_id)
            case OutcomeRecord() if record.command_id in trees[record.tree].failed:
                tree = trees[record.tree]
                tree.first_told = record.command_id if tree.first_told is None else tree.first_told
            case ClosedRecord() if trees[record.tree].first_told is None:
                del trees[record.tree]
            case _:
                pass
    return {index: tree for index, tree in trees.items() if tree.failed}


def _write(path: Path, trees: dict[int, TreeFailures]) -> None:
    """Write what stays beside the journal."""
    reader = Reader(path / JOURNAL)
    journal = Journal.create(path / CUT, reader.header)
    try:
        for number, record in enumerate(_kept(reader, trees), 1):
            journal.append(record)
            if number % NUM_IN_FLIGHT == 0:
                journal.sync()
    finally:
        journal.close()


def _kept(records: Reader, trees: dict[int, TreeFailures]) -> Iterator[RunRecord]:
    broken: set[tuple[int, int]] = set()
    """(tree, command): no step of it is kept any more."""
    for record in records:
        if not isinstance(record, AskedRecord | GrownRecord | OutcomeRecord | ClosedRecord):
            yield record
            continue
        tree = trees.get(record.tree)
        if tree is None:
            yield record
        elif isinstance(record, GrownRecord):
            if _is_lost(record, tree):
                broken.add((record.tree, record.command_id))
            if (record.tree, record.command_id) not in broken:
                yield record
        else:
            tree.is_cut |= isinstance(record, OutcomeRecord) and record.command_id == tree.first_told
            if not tree.is_cut:
                yield record


def _is_lost(record: GrownRecord, tree: TreeFailures) -> bool:
    """Whether a step goes, with all later ones of its command: an engine failed it, nobody will have asked for it, or
    it was given up after a failure that nobody will have been told of."""
    stop = record.step.stop
    is_given_up = tree.is_cut and stop is not None and stop_word(stop).is_failure
    return stop == ENGINE_ERROR or is_given_up or (tree.is_cut and record.command_id >= tree.num_asked)
