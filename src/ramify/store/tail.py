"""Tail: follows a journal that may be written meanwhile: each look gives the whole lines that are new.

It takes no lock and never waits. An incomplete last line is left for the next look. Damage is told in words and passed
over, so one bad line does not hide the rest. A journal that was cut, replaced or deleted is read again from its
beginning.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

from ramify.core.errors import StoreError
from ramify.store.framing import file_name, kind_of, parse, sound_end
from ramify.store.journal import file_paths, open_file, raw_lines, store_errors

MAX_FAULTS: Final = 20
"""Damaged places that are told one by one."""
NUM_CHECKSUM: Final = 8
"""Characters of the checksum at the beginning of a line."""


class TailedLine(NamedTuple):
    """A whole line with a right checksum, and where it stands."""

    kind: str
    """The record's name on disk, such as `grown`."""
    tree: int | None
    """The tree that it is about; None = it is about none, or about several."""
    file: int
    """Index of its file."""
    offset: int
    """Byte of the file where it begins."""
    length: int
    """Its bytes, line break included."""
    body: bytes
    """The record's own JSON."""


@dataclass(frozen=True, slots=True)
class BegunAgain:
    """Everything that was read before is no longer there. What follows is the journal from its beginning."""

    why: str


@dataclass(slots=True)
class _SeenFile:
    """A file of which lines were read."""

    identity: tuple[int, int]
    """Device and inode."""
    first: bytes
    """Checksum of its first line, because a new file may get the inode of one that was deleted."""
    offset: int = 0
    """End of the last line that was given."""
    state: tuple[int, int] = (-1, -1)
    """Size and time of the last change when it was read last to its end."""


class JournalTail:
    """Follows the journal of one folder. Only `look` mutates it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.is_sealed = False
        """Whether the last line says that its file will not be written again."""
        self.torn = ""
        """What stands behind the last whole line, in words. While a run goes on, that is a line in the making."""
        self._files: list[_SeenFile] = []
        self._number = 0
        self._damage: list[str] = []
        self._num_damaged = 0
        self._trouble = ""

    @property
    def has_begun(self) -> bool:
        """Whether a file of the journal has been read."""
        return bool(self._files)

    @property
    def faults(self) -> list[str]:
        """What is wrong with the journal, in words."""
        told = [*self._damage, self._trouble] if self._trouble else [*self._damage]
        more = self._num_damaged - len(self._damage)
        return [*told, f"{self.folder}: {more} more places are damaged"] if more else told

    def look(self) -> Iterator[TailedLine | BegunAgain]:
        """The lines that are new since the last look. Raises nothing: what goes wrong is one of the `faults`."""
        self._trouble = ""
        try:
            if why := self._changed():
                self._forget()
                yield BegunAgain(why)
            yield from self._new_lines()
        except StoreError as error:
            self._trouble = str(error)

    def _changed(self) -> str:
        """Why the lines that were read are no longer those of the journal; empty = they are."""
        for index, seen in enumerate(self._files):
            path = self.folder / file_name(index)
            try:
                found = os.lstat(path)
            except FileNotFoundError:
                return f"{path} is gone"
            except OSError as error:
                raise StoreError(f"cannot look at {path}: {error.strerror or error}") from error
            if (found.st_dev, found.st_ino) != seen.identity:
                return f"{path} was replaced"
            if found.st_size < seen.offset:
                return f"{path} was cut"
            if (found.st_size, found.st_mtime_ns) != seen.state and self._first(path) != seen.first:
                return f"{path} was written anew"
        return ""

    def _first(self, path: Path) -> bytes:
        with store_errors("read", path), open_file(path) as file:
            return file.read(NUM_CHECKSUM)

    def _forget(self) -> None:
        """Begin before the first line."""
        self._files.clear()
        self._damage.clear()
        self._number = self._num_damaged = 0
        self.is_sealed, self.torn = False, ""

    def _new_lines(self) -> Iterator[TailedLine]:
        paths = file_paths(self.folder)
        for index in range(max(0, len(self._files) - 1), len(paths)):
            if paths[index].name != file_name(index):
                raise StoreError(f"{self.folder} has {paths[index].name} but not {file_name(index)}")
            yield from self._read(index, paths[index], is_last=index == len(paths) - 1)

    def _read(self, index: int, path: Path, *, is_last: bool) -> Iterator[TailedLine]:
        """The new lines of one file."""
        with store_errors("read", path), open_file(path) as file:
            found = os.fstat(file.fileno())
            state = (found.st_size, found.st_mtime_ns)
            seen = self._seen(index, file, (found.st_dev, found.st_ino))
            if seen is None or (is_last and seen.state == state):
                return
            file.seek(end := seen.offset)
            for raw in raw_lines(file):
                at, end = end, end + len(raw)
                line = parse(raw)
                if line is None:
                    whole = sound_end(raw)
                    line, at = parse(whole), end - len(whole)
                    if line is None:
                        continue
                if at > seen.offset:
                    self._told(path, f"bytes {seen.offset} to {at} are no whole record")
                    self._number = line.number
                seen.offset = end
                if line.number == self._number or self._is_behind_gap(line.number, path, at):
                    self._number = line.number + 1
                    kind, tree = kind_of(line.body)
                    self.is_sealed = kind == "sealed"
                    yield TailedLine(kind, tree, index, at, end - at, line.body)
            self._end(seen, path, end, is_last=is_last)
            seen.state = state

    def _seen(self, index: int, file: BinaryIO, identity: tuple[int, int]) -> _SeenFile | None:
        """What was read of a file; None = it has no line yet."""
        if index == len(self._files):
            first = file.read(NUM_CHECKSUM)
            if len(first) < NUM_CHECKSUM:
                return None
            self._files.append(_SeenFile(identity, first))
        return self._files[index]

    def _end(self, seen: _SeenFile, path: Path, end: int, *, is_last: bool) -> None:
        """Handle what stands behind the last whole line of a file, up to byte `end`."""
        self.torn = ""
        if end > seen.offset and is_last:
            self.torn = f"{path}: {end - seen.offset} bytes torn at record {self._number}, byte {seen.offset}"
        elif end > seen.offset:
            self._told(path, f"bytes {seen.offset} to {end} are no whole record, and another file follows")
            seen.offset = end

    def _is_behind_gap(self, number: int, path: Path, at: int) -> bool:
        """Tell what is wrong with the number of a line. False = the line is not to be given, because it was there
        before."""
        is_behind = number > self._number
        wrong = (
            f"record {self._number} is missing, {number} follows" if is_behind else f"record {number} is there again"
        )
        self._told(path, f"{wrong}, at byte {at}")
        return is_behind

    def _told(self, path: Path, what: str) -> None:
        self._num_damaged += 1
        if len(self._damage) < MAX_FAULTS:
            self._damage.append(f"{path} is damaged: {what}")
