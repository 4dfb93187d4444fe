"""Record reader: reads records of journals again, by the places where a look found them."""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO

from ramify.core.errors import StoreError
from ramify.store.framing import decode, file_name, parse
from ramify.store.journal import open_file, store_errors
from ramify.store.records import FileRecord, RunRecord
from ramify.view.followed_tree import LinePlace


class RecordReader:
    """Keeps the files open that it has read from. Must be closed."""

    def __init__(self) -> None:
        self._files: dict[tuple[Path, int], BinaryIO] = {}
        self._stack = ExitStack()

    def records(self, folder: Path, places: Iterable[LinePlace]) -> Iterator[RunRecord]:
        """The records at some places of a journal. Raises `StoreError` if a place no longer holds one."""
        for place in places:
            file = self._files.get((folder, place.file)) or self._opened(folder, place.file)
            with store_errors("read", folder):
                file.seek(place.offset)
                line = parse(file.read(place.length))
            if line is None:
                raise StoreError(f"{folder / file_name(place.file)} has changed at byte {place.offset}; look again")
            record = decode(line.body)
            if not isinstance(record, FileRecord):
                yield record

    def close(self) -> None:
        self._stack.close()
        self._files.clear()

    def _opened(self, folder: Path, index: int) -> BinaryIO:
        path = folder / file_name(index)
        with store_errors("read", path):
            file = self._files[folder, index] = self._stack.enter_context(open_file(path))
        return file
