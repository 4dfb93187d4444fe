"""Logged: an engine that writes down every generation as it leaves: request id, ids fed, ids sampled.

The log is kept apart from the run's journal and knows nothing of trees, so that one can be held against the other
(`ramify check RUN --against LOG`). A line is on the operating system's side before its generation is handed on: what a
run recorded is in the log, also after a kill. Lines of calls that failed or were given up are not written.
"""

from collections.abc import Iterator
from io import FileIO
from pathlib import Path

import msgspec

from ramify.core.codec import Codec
from ramify.core.engine import Capabilities, Engine, Generation, Request
from ramify.core.errors import ConfigError, StoreError


class Entry(msgspec.Struct, frozen=True):
    """One generation."""

    request_id: str
    fed: list[int]
    sampled: list[int]


class Logged:
    """An engine in front of another one, the same but for the log. Owns the file."""

    def __init__(self, engine: Engine, path: Path) -> None:
        self._engine = engine
        self._path = path
        self._file: FileIO | None = None
        if not path.parent.is_dir() or path.is_dir():
            raise ConfigError(f"engine.log = {str(path)!r}: it is no file in a folder that is there")

    @property
    def codec(self) -> Codec:
        return self._engine.codec

    @property
    def capabilities(self) -> Capabilities:
        return self._engine.capabilities

    async def generate(self, request: Request) -> Generation:
        generation = await self._engine.generate(request)
        entry = Entry(request.request_id, request.ids.tolist(), generation.ids.tolist())
        self._opened().write(msgspec.json.encode(entry) + b"\n")
        return generation

    async def close(self) -> None:
        await self._engine.close()
        if self._file is not None:
            self._file.close()

    def _opened(self) -> FileIO:
        """The file, opened when there is something to write: whoever only looks at a run makes none."""
        if self._file is None:
            self._file = self._path.open("ab", buffering=0)
        return self._file


def read_log(path: Path) -> Iterator[Entry]:
    """Entries in order; a torn last line is left out. Raises `StoreError` for any other line that is no entry."""
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
