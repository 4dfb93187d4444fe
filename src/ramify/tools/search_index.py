"""Search indexes on a disk: how one gets there, and how it is opened again.

Owns the file or folder of an index: it is built once, appears whole or not at all, and is only read from then on. What
it holds and how it is asked is in `passages.py`, and what is on the disk is its backend's.
"""

import contextlib
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal, get_args

from ramify.core.errors import ConfigError, nearest
from ramify.tools.passages import Index, Passage, unwritable

Backend = Literal["sqlite", "tantivy"]
"""`sqlite` needs nothing but Python and makes one file; `tantivy` is quicker and makes a folder."""


def build_index(path: str | Path, passages: Iterable[Passage], *, backend: Backend = "sqlite") -> int:
    """Write an index of `passages` to `path`, where nothing may be yet. Returns how many they are.

    Passages are taken one by one and not kept. Raises `ConfigError` if there are none, `path` is taken or
    there is no such backend.
    """
    match backend:
        case "sqlite":
            from ramify.tools.sqlite_index import write
        case "tantivy":
            from ramify.tools.tantivy_index import write
        case _:
            raise ConfigError(f"backend = {backend!r}: no such backend; {nearest(backend, get_args(Backend))}")
    with _placed(Path(path)) as unfinished:
        num_passages = write(unfinished, passages)
        if num_passages == 0:
            raise ConfigError(f"there are no passages for the search index {str(path)!r}; one at least is needed")
    return num_passages


def open_index(path: str | Path) -> Index:
    """The index that `build_index` wrote to `path`; it says itself which backend it is of.

    Raises `ConfigError` if there is none, or one that this version cannot read.
    """
    path = Path(path)
    if not path.exists():
        raise ConfigError(f"there is no search index {str(path)!r}; make one: ramify index CORPUS --out {path}")
    if path.is_dir():
        from ramify.tools.tantivy_index import open_folder

        return open_folder(path)
    from ramify.tools.sqlite_index import open_file

    return open_file(path)


@contextlib.contextmanager
def _placed(path: Path) -> Iterator[Path]:
    """A path to build at, moved to `path` when the block ends well and removed when it does not."""
    if path.exists():
        raise ConfigError(f"{str(path)!r} is there already; remove it or name another path")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(path, error) from error
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.unfinished")
    _remove(unfinished)
    try:
        yield unfinished
        unfinished.replace(path)
    finally:
        _remove(unfinished)


def _remove(path: Path) -> None:
    """Remove a file or a folder, if there is one."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
