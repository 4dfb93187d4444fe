"""Folders: the files of a state, inside the sandbox.

A running step has a place of its own, `box/N`, with `work`, where it starts, and `tmp`, its TMPDIR. The host puts the
files of a finished step away under `box/.parked/NAME`, where no process of the sandbox can write. So a step always
begins with a copy, and what it does to it reaches nobody else. Standard library only; every file is taken as hostile:
links are copied as links, pipes and sockets not at all, nothing is followed.
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
"""In the box: the files of states that wait, which only the host moves, and what a step of the host's removes."""
NUM_PLACES: Final = 64
"""Steps that can run at once in one sandbox."""
WORK, TMP = "work", "tmp"
_CHUNK_BYTES: Final = 1 << 20


def make_box(box: str, owner: int | None) -> None:
    """All places, which everybody may use and nobody may list, and the others. `owner` None = who makes them."""
    modes = {PARKED: 0o311, TRASH: 0o333, **{place(number): 0o733 for number in range(NUM_PLACES)}, ".": 0o311}
    for name, mode in modes.items():
        path = f"{box}/{name}"
        os.makedirs(path, exist_ok=True)
        os.chmod(path, mode)
        if owner is not None:
            os.chown(path, owner, owner)


def place(number: int) -> str:
    """Name of one place where a step can run."""
    return str(number)


def take(box: str, folder: str, source: str) -> None:
    """Fill `folder` with a copy of the files parked as `source`, '' = none, and go where the parent stood in it.

    Raises OSError where the parent's are gone, the copy finds no room, or somebody else was in `folder` first.
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
    """Whether a state may keep what its step left. Holes and second links count in full: a copy has neither."""
    num_bytes = num_files = 0
    try:
        for top in filter(_is_folder, (f"{live}/{WORK}", f"{live}/{TMP}")):
            for _, entry in _walk(top):
                num_files += 1
                if not entry.is_dir(follow_symlinks=False):
                    num_bytes += entry.stat(follow_symlinks=False).st_size
                if num_bytes > max_bytes or num_files > max_files:
                    return False
    except OSError:  # Nested so deep, or changed so fast, that it cannot be read.
        return False
    return True


def remove(top: str) -> None:
    """Remove a folder that nobody uses, however deep it is nested: level by level, and without following anything."""
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
    """Where this process stands in the folder its state is parked in; None = elsewhere."""
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
    """What was copied may be anything, or nothing."""
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
    """Every entry under `top` with its path from there, folders before what is in them. No recursion: folders may be
    nested deeper than Python's stack."""
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
    """A look into a folder, which its owner may have locked."""
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
    """A write stops short where the file system is full; the next one says so."""
    view = memoryview(chunk)
    while view:
        view = view[os.write(descriptor, view) :]
