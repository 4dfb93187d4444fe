"""Search indexes on a disk: build one and open it again.

Owns the file or folder of an index: it is built once, appears whole or not at all, and is read-only afterwards.
`passages.py` says what it holds and how it is searched; a backend owns the bytes on the disk.
"""

import contextlib
import os
import platform
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
            raise ConfigError(f"no passages for the search index {str(path)!r}; at least one is needed")
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
    _refuse_taken(path)
    unfinished = path.with_name(f".{path.name}.{platform.node()}.{os.getpid()}.unfinished")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(path)
        _remove(unfinished)
    except OSError as error:
        raise unwritable(path, error) from error
    try:
        yield unfinished
        _refuse_taken(path)
        try:
            unfinished.replace(path)
        except OSError as error:
            raise unwritable(path, error) from error
    finally:
        _remove(unfinished)


def _refuse_taken(path: Path) -> None:
    if path.exists():
        raise ConfigError(f"{str(path)!r} already exists; remove it or name another path")


def _remove_leftovers(path: Path) -> None:
    """Remove what builds of this index left on this machine when they were killed."""
    beginning = f".{path.name}.{platform.node()}."
    for left in path.parent.iterdir():
        pid = left.name.removeprefix(beginning).removesuffix(".unfinished")
        if left.name == f"{beginning}{pid}.unfinished" and pid.isdigit() and not _is_running(int(pid)):
            _remove(left)


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _remove(path: Path) -> None:
    """Remove a file or a folder, if there is one."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
