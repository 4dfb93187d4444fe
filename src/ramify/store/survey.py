"""Survey: what the journals of a run hold, from the frames of their lines. No other record is decoded, no tree grown.

Only the frame of a line is checked. The rest is checked where the records are read (`journal.Reader`).
"""

import fcntl
import os
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import islice, takewhile
from pathlib import Path

from ramify.store.framing import JournalLine, decode, kind_of, parse
from ramify.store.journal import LOCK, Reader, TornTail, file_paths, open_file, raw_lines, store_errors
from ramify.store.layout import JOURNAL, RunPart, parts
from ramify.store.records import TreeRecord


@dataclass(slots=True)
class Survey:
    """What a run holds."""

    num_opened: int = 0
    num_closed: int = 0
    torn: list[TornTail] = field(default_factory=list[TornTail])
    """What a crash left at the end of each journal. A journal that is being written has none."""

    @property
    def num_unfinished(self) -> int:
        """Number of trees that were begun and not finished."""
        return self.num_opened - self.num_closed


def survey(path: Path) -> Survey:
    """Look through the run at `path`. Raises `StoreError` if it cannot be read, or is damaged where a line is bad."""
    found = Survey()
    for part in parts(path):
        folder = part.path / JOURNAL
        for line in _lines(folder):
            if line is None:
                found.torn += [] if is_written(folder) else _torn(folder, path)
                break
            kind, tree = kind_of(line.body)
            found.num_opened += kind == "opened" and tree is not None
            found.num_closed += kind == "closed" and tree is not None
    return found


def closed_trees(part: RunPart) -> list[int]:
    """The numbers of the trees that a journal says are closed, in order."""
    lines = takewhile(lambda line: line is not None, _lines(part.path / JOURNAL))
    kinds = (kind_of(line.body) for line in lines if line is not None)
    return sorted(tree for kind, tree in kinds if kind == "closed" and tree is not None)


def _torn(folder: Path, run: Path) -> list[TornTail]:
    """The torn tail of a journal with a bad line. Raises `StoreError` if it is damage that no crash explains."""
    reader = Reader(folder)
    deque(reader, maxlen=0)
    torn = reader.torn
    return [] if torn is None else [replace(torn, file=str((folder / torn.file).relative_to(run)))]


def records_of(part: RunPart, tree: int) -> Iterator[TreeRecord]:
    """The records of one tree. Those of others are not decoded."""
    for line in _lines(part.path / JOURNAL):
        if line is None:
            return
        if kind_of(line.body)[1] == tree:
            record = decode(line.body)
            if isinstance(record, TreeRecord):
                yield record


def _lines(folder: Path) -> Iterator[JournalLine | None]:
    """The content of each line of a journal behind its header; None = the line is not whole."""
    for number, path in enumerate(file_paths(folder)):
        with store_errors("read", path), open_file(path) as file:
            yield from map(parse, islice(raw_lines(file), int(number == 0), None))


def is_written(folder: Path) -> bool:
    """Whether a process writes the journal of `folder` now."""
    try:
        descriptor = os.open(folder / LOCK, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False
