"""Search indexes on disk: build one and open it again.

Owns the file or folder of an index. It is built once, appears completely or not at all, and is read-only afterwards.
`passages.py` defines its content and how it is searched; a backend defines the bytes on disk.
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
"""`sqlite` needs only Python and makes one file; `tantivy` is faster and makes a folder."""


def build_index(path: str | Path, passages: Iterable[Passage], *, backend: Backend = "sqlite") -> int:
    """Write an index of `passages` to `path`, which must not exist yet. Returns the number of passages.

    Passages are read one by one and not kept in memory. Raises `ConfigError` if there are none, `path` exists or the
    backend is unknown.
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
    """The index that `build_index` wrote to `path`; its backend is detected.

    Raises `ConfigError` if there is no index, or this version cannot read it.
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
    """A temporary path to build at. It is moved to `path` when the block succeeds and removed when it fails."""
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
    """Remove what killed builds of this index left on this machine."""
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
