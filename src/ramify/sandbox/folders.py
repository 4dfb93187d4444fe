"""Folders: the files of a state, inside the sandbox.

A running step has its own place `box/N` with the folder `work`, where it starts, and `tmp`, its TMPDIR. The host moves
the files of a finished step to `box/.parked/NAME`, where no process of the sandbox can write. So a step always starts
with a copy, and its changes reach no other step. Standard library only. Every file is treated as hostile: links are
copied as links, pipes and sockets are not copied, and no link is followed.
"""

# ruff: noqa: PTH101, PTH102, PTH103, PTH104, PTH106, PTH108, PTH109, PTH115, PTH208, PTH211 - paths are text here: pathlib is slow to import and knows no descriptors

import os
import stat
import sys
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from typing import Final

from ramify.sandbox import inherited

PARKED, TRASH = ".parked", ".trash"
"""In the box: files of waiting states, which only the host moves; and files that the host's own steps remove."""
NUM_PLACES: Final = 64
"""Number of steps that can run at once in one sandbox."""
WORK, TMP = "work", "tmp"
_CHUNK_BYTES: Final = 1 << 20


def make_box(box: str, owner: int | None) -> None:
    """Make all places, which everybody may use but nobody may list, and the other folders. `owner` None = the process
    that makes them."""
    modes = {PARKED: 0o311, TRASH: 0o333, **{place(number): 0o733 for number in range(NUM_PLACES)}, ".": 0o311}
    for name, mode in modes.items():
        path = f"{box}/{name}"
        os.makedirs(path, exist_ok=True)
        os.chmod(path, mode)
        if owner is not None:
            os.chown(path, owner, owner)


def place(number: int) -> str:
    """Name of a place where a step can run."""
    return str(number)


def take(box: str, folder: str, source: str) -> None:
    """Fill `folder` with a copy of the files parked as `source` ('' = none), and change to the parent's working
    directory in it.

    Raises OSError if the parent's files are gone, there is no room for the copy, or `folder` was not empty.
    """
    live, parked = f"{box}/{folder}", f"{box}/{PARKED}/{source}"
    inner = _stand_in(parked) if source else WORK
    if source:
        _copy_all(parked, live)
    for name in (WORK, TMP):
        _make_folder(f"{live}/{name}", is_copy=bool(source))
    if source:
        inherited.separate(f"{parked}/", f"{live}/", spare=f"{live}/{TMP}/")
    if inner is not None:
        _go(live, inner)
    _set_temporary(f"{live}/{TMP}")


def fits(live: str, *, max_bytes: int, max_files: int) -> bool:
    """Whether a state may keep its step's files. Sparse files and hard links count in full, because a copy keeps
    neither."""
    num_bytes = num_files = 0
    try:
        for top in filter(_is_folder, (f"{live}/{WORK}", f"{live}/{TMP}")):
            for _, entry in _walk(top):
                num_files += 1
                if not entry.is_dir(follow_symlinks=False):
                    num_bytes += entry.stat(follow_symlinks=False).st_size
                if num_bytes > max_bytes or num_files > max_files:
                    return False
    except OSError:  # Nested too deep, or changed too fast, to be read.
        return False
    return True


def remove(top: str) -> None:
    """Remove a folder that nobody uses, however deep it is nested: level by level, without following links."""
    numbers = count()
    with suppress(FileNotFoundError):
        os.chmod(top, 0o700)
        while names := os.listdir(top):
            for name in names:
                _remove_level(f"{top}/{name}", (f"{top}/.ramify-{number}" for number in numbers))
        os.rmdir(top)


def _remove_level(path: str, free: Iterator[str]) -> None:
    if not _is_folder(path):
        os.unlink(path)
        return
    os.chmod(path, 0o700)
    for inner in os.listdir(path):
        os.rename(f"{path}/{inner}", next(name for name in free if not os.path.lexists(name)))
    os.rmdir(path)


def _stand_in(parked: str) -> str | None:
    """This process's working directory, relative to the folder its state is parked in; None = elsewhere."""
    try:
        here = os.getcwd()
    except OSError:
        return WORK
    return here[len(parked) + 1 :] if here == parked or here.startswith(parked + "/") else None


def _go(live: str, inner: str) -> None:
    for path in (f"{live}/{inner}", f"{live}/{WORK}"):
        with suppress(OSError):
            os.chdir(path)
            return


def _set_temporary(path: str) -> None:
    if os.environ.get("TMPDIR") == path:
        return
    os.environ["TMPDIR"] = path
    tempfile = sys.modules.get("tempfile")
    if tempfile is not None:
        tempfile.tempdir = None  # pyright: ignore[reportAttributeAccessIssue]


def _make_folder(path: str, *, is_copy: bool) -> None:
    """Make a folder, and replace a copied entry that is not a folder."""
    if is_copy and os.path.lexists(path):
        if _is_folder(path):
            return
        os.unlink(path)
    os.mkdir(path, 0o700)


def _is_folder(path: str) -> bool:
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except OSError:
        return False


def _walk(top: str) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Every entry under `top` with its path relative to `top`; a folder comes before its contents. Not recursive:
    folders may be nested deeper than Python's stack."""
    waiting = [""]
    while waiting:
        inner = waiting.pop()
        with _opened(f"{top}/{inner}") as entries:
            for entry in entries:
                path = f"{inner}/{entry.name}" if inner else entry.name
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(path)
                yield path, entry


def _opened(folder: str) -> "os._ScandirIterator[str]":  # pyright: ignore[reportPrivateUsage]
    """List a folder, and unlock it first if its owner had locked it."""
    try:
        return os.scandir(folder)
    except PermissionError:
        os.chmod(folder, 0o700)
        return os.scandir(folder)


def _copy_all(source: str, target: str) -> None:
    for path, entry in _walk(source):
        mode = entry.stat(follow_symlinks=False).st_mode
        if stat.S_ISDIR(mode):
            os.mkdir(f"{target}/{path}", 0o700)
        elif stat.S_ISLNK(mode):
            os.symlink(os.readlink(entry.path), f"{target}/{path}")
        elif stat.S_ISREG(mode):
            _copy(entry.path, f"{target}/{path}", entry.stat(follow_symlinks=False))


def _copy(source: str, target: str, status: os.stat_result) -> None:
    mode = stat.S_IMODE(status.st_mode)
    if not mode & stat.S_IRUSR:
        os.chmod(source, mode | stat.S_IRUSR)
    read = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    written = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        while chunk := os.read(read, _CHUNK_BYTES):
            _write_all(written, chunk)
        os.fchmod(written, mode)
        os.utime(written, ns=(status.st_atime_ns, status.st_mtime_ns))
    finally:
        os.close(read)
        os.close(written)


def _write_all(descriptor: int, chunk: bytes) -> None:
    """A write is incomplete if the file system is full; the next write raises the error."""
    view = memoryview(chunk)
    while view:
        view = view[os.write(descriptor, view) :]
