"""Plain file: opens the files of a run folder, which somebody else may have made.

Only regular files are opened, never through a link, and opening never waits: a FIFO, a device or a link raises an error
that says what it is. A file that is written has one name: through a hard link another file would change.
"""

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, Final

from ramify.core.errors import StoreError

GUARDED: Final = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
MODE: Final = 0o644

_KINDS: Final[tuple[tuple[Callable[[int], bool], str], ...]] = (
    (stat.S_ISLNK, "a link"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISCHR, "a device"),
)


class OddFile(OSError):
    """Something stands in the place of a run's file that is not opened."""

    def __init__(self, why: str) -> None:
        super().__init__(errno.EINVAL, why)


def open_plain(path: Path, *, max_bytes: int) -> BinaryIO:
    """Open a regular file of at most `max_bytes` for reading. Raises `OddFile` for anything else, another `OSError`
    if it cannot be opened."""
    _refuse_other_kinds(path, os.lstat(path))
    file = os.fdopen(os.open(path, os.O_RDONLY | GUARDED), "rb")
    try:
        found = os.fstat(file.fileno())
        _refuse_other_kinds(path, found)
        if found.st_size > max_bytes:
            raise OddFile(f"{path.name} has {found.st_size:,} bytes, and a run writes at most {max_bytes:,} there")
    except BaseException:
        file.close()
        raise
    return file


def read_plain(path: Path, *, max_bytes: int) -> bytes:
    """The bytes of a regular file of at most `max_bytes`. Raises as `open_plain`."""
    with open_plain(path, max_bytes=max_bytes) as file:
        return file.read(max_bytes + 1)


def writable(path: Path, flags: int) -> int:
    """The descriptor of a regular file with one name, opened with `flags`, or of a new one if they have `O_CREAT`.

    Raises `OddFile` for anything else, another `OSError` if it cannot be opened.
    """
    if os.path.lexists(path):
        _refuse_shared(path, os.lstat(path))
    descriptor = os.open(path, flags | GUARDED, MODE)
    try:
        _refuse_shared(path, os.fstat(descriptor))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def new_plain(path: Path) -> BinaryIO:
    """A new file at `path` for writing. What stands there is removed: a link, not what it leads to."""
    path.unlink(missing_ok=True)
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | GUARDED, MODE), "wb")


def refuse_link(folder: Path) -> None:
    """Raise `StoreError` if `folder` is a link."""
    if folder.is_symlink():
        raise StoreError(f"{folder} is a link to {str(folder.readlink())!r}; a run writes none: put the folder there")


def refuse_strangers_link(path: Path) -> None:
    """Raise `StoreError` if `path` is a link to a folder of another user."""
    if path.is_symlink() and path.exists() and (owner := path.stat().st_uid) != os.geteuid():
        raise StoreError(
            f"{path} is a link to {str(path.readlink())!r}, which belongs to the user {owner}; name that folder itself"
        )


def _refuse_other_kinds(path: Path, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        kind = next((name for is_kind, name in _KINDS if is_kind(found.st_mode)), "no file")
        led = f" to {str(path.readlink())!r}" if kind == "a link" else ""
        raise OddFile(f"{path.name} is {kind}{led}; a run has a plain file there, and nothing else is opened")


def _refuse_shared(path: Path, found: os.stat_result) -> None:
    _refuse_other_kinds(path, found)
    if found.st_nlink > 1:
        raise OddFile(
            f"{path.name} has {found.st_nlink} names (hard links), so writing would change another folder too; "
            "copy the run (cp -r) and use the copy"
        )
