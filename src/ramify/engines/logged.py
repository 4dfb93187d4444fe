"""Logged: an engine that logs every generation it returns: request id, ids fed, ids sampled.

The log is separate from the run's journal and knows nothing of trees, so that `ramify check RUN --against LOG` can
compare the two. The operating system has a complete line before its generation is returned. So the log has everything
that a run recorded, even after a kill or on a full disk. Failed calls have no line.
"""

import os
from collections.abc import Iterator
from io import FileIO
from pathlib import Path

import msgspec

from ramify.core.engine import Engine, Generation, Request
from ramify.core.errors import ConfigError, EngineError, StoreError
from ramify.engines.in_front import InFront

BEGINNING = b'{"request_id":'
"""The beginning of every line."""


class Entry(msgspec.Struct, frozen=True):
    """One generation."""

    request_id: str
    fed: list[int]
    sampled: list[int]


class Logged(InFront):
    """Wraps an engine and adds the log. Owns the file."""

    def __init__(self, engine: Engine, path: Path) -> None:
        """Raises `ConfigError` if `path` cannot be a log, or is a file of another kind."""
        super().__init__(engine)
        self._path = path
        self._file: FileIO | None = None
        if not path.parent.is_dir() or path.is_dir():
            raise ConfigError(f"engine.log = {str(path)!r}: name a file in an existing folder")
        if path.exists() and not _is_log(path):
            raise ConfigError(f"engine.log = {str(path)!r}: the file exists and is no engine's log; name another file")

    async def generate(self, request: Request) -> Generation:
        """Run one request. Raises `EngineError`, also if the line cannot be written."""
        fed = request.ids.tolist()
        generation = await self.engine.generate(request)
        self._write(msgspec.json.encode(Entry(request.request_id, fed, generation.ids.tolist())) + b"\n")
        return generation

    async def close(self) -> None:
        try:
            await super().close()
        finally:
            if self._file is not None:
                self._file.close()

    def _write(self, line: bytes) -> None:
        """Append a complete line, or nothing."""
        try:
            if self._file is None:
                self._file = _opened(self._path)
            end = self._file.seek(0, os.SEEK_END)
            try:
                while line:
                    line = line[self._file.write(line) :]
            except OSError:
                self._file.truncate(end)
                raise
        except OSError as error:
            raise EngineError("log_failed", f"{self._path}: {error.strerror}") from error


def _is_log(path: Path) -> bool:
    """Whether the file begins as a log does. An empty file counts as one."""
    with path.open("rb") as file:
        return BEGINNING.startswith(file.read(len(BEGINNING)))


def _opened(path: Path) -> FileIO:
    """The file to append to. If a kill left a partial last line, it is removed: its generation was never returned."""
    file = path.open("a+b", buffering=0)
    end = file.seek(0, os.SEEK_END)
    while end and os.pread(file.fileno(), 1, end - 1) != b"\n":
        end -= 1
    file.truncate(end)
    return file


def read_log(path: Path) -> Iterator[Entry]:
    """Entries in order, without a partial last line. Raises `StoreError` for any other line that is no entry."""
    decoder = msgspec.json.Decoder(Entry)
    try:
        lines = path.open("rb")
    except OSError as error:
        raise StoreError(f"the engine's log {path} cannot be read: {error.strerror}") from None
    with lines:
        for number, line in enumerate(lines, 1):
            if not line.endswith(b"\n"):
                return
            try:
                yield decoder.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise StoreError(f"{path}, line {number}: no entry of an engine's log: {error}") from None
