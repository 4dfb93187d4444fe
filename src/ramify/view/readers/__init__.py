"""Readers: files of other projects as trees, so that the viewer can show them.

A file is recognised by what it holds. One file is one run; so is a folder of files of one format. No file is trusted:
nothing in it is run, unpickled, followed or unpacked to disk, and everything is bounded. Texts stay verbatim, so
whoever shows them must show them as text.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol

from ramify.core.errors import StoreError
from ramify.view.readers import inspect_eval, treequest, trl, verifiers, verifiers_results, verl
from ramify.view.readers.foreign_run import ForeignRun, ForeignTree
from ramify.view.readers.opening import Opening, opening
from ramify.view.readers.plain_files import refuse_large

__all__ = ["READERS", "ForeignReader", "ForeignRun", "ForeignTree", "foreign_run"]


class ForeignReader(Protocol):
    """A module that reads one format."""

    def is_mine(self, start: Opening, /) -> bool: ...

    def read(self, files: Sequence[Path], /) -> ForeignRun: ...


READERS: Final[Mapping[str, ForeignReader]] = {
    "verifiers": verifiers,
    "verifiers_results": verifiers_results,
    "verl": verl,
    "trl": trl,
    "inspect": inspect_eval,
    "treequest": treequest,
}
"""Name of a format -> the module that reads it."""
_IN_FOLDERS: Final = ("traces.jsonl", "results.jsonl", "[0-9]*.jsonl", "*.parquet", "completions/*.parquet", "*.eval")
_OWN: Final = ("journal", "shards.json", "shards.copy")
"""What a run folder of our own holds."""
MAX_FILES: Final = 10_000


def foreign_run(path: Path) -> ForeignRun | None:
    """The trees of a file of another project, or of a folder of such files.

    None = it is a run folder of our own, or nothing that is known. Raises `StoreError` for a file of a known format
    that is damaged or too large, and `ConfigError` if a package is missing that reads it.
    """
    files = _files(path) if path.is_dir() else [path] if path.is_file() else []
    openings = [(file, start) for file in files if (start := opening(file)) is not None]
    for reader in READERS.values():
        if mine := [file for file, start in openings if reader.is_mine(start)]:
            refuse_large(mine)
            return reader.read(mine)
    return None


def _files(folder: Path) -> list[Path]:
    """The files of a folder that may be read, those of numbered steps in order."""
    if any((folder / name).exists() for name in _OWN):
        return []
    found = [file for pattern in _IN_FOLDERS for file in folder.glob(pattern) if file.is_file()]
    if len(found) > MAX_FILES:
        raise StoreError(
            f"{folder} has {len(found):,} files to show, and at most {MAX_FILES:,} are read; name one of them"
        )
    return sorted(found, key=lambda file: (int(file.stem) if file.stem.isdecimal() else 0, file.name))
