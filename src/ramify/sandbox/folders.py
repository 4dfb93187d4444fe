"""Folders: the files of a state, inside the sandbox.

A running step has a folder of its own, `box/FOLDER`, with `work`, where it starts, and `tmp`, its TMPDIR. A state that
waits has its files under `box/.parked/NAME`, a name that only its descendants know in a folder that cannot be listed.
So a step always begins with a copy, and what it does to it reaches nobody else. Standard library only; every file is
taken as hostile: links are copied as links, pipes and sockets not at all, nothing is followed.
"""

# ruff: noqa: PTH101, PTH102, PTH104, PTH108, PTH109, PTH115, PTH208, PTH211 - paths are text here: pathlib is slow to import and knows no descriptors

import fcntl
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

PARKED: Final = ".parked"
WORK, TMP = "work", "tmp"
_CHUNK_BYTES: Final = 1 << 20


def take(box: str, folder: str, source: str, *, trash: str) -> None:
    """Make `folder` a copy of the files parked as `source` and go where the parent stood in it.

    Raises OSError where they are gone or the copy finds no room. Whatever was there before is moved to `trash`.
    """
    live = f"{box}/{folder}"
    inner = _stand_in(f"{box}/{PARKED}/{source}") if source else WORK
    with suppress(FileNotFoundError):
        os.rename(live, f"{box}/{PARKED}/{trash}")
    os.mkdir(live, 0o700)
    if source:
        _copy_all(f"{box}/{PARKED}/{source}", live)
        _reopen(f"{box}/{PARKED}/{source}/", live)
    for name in (WORK, TMP):
        _make_folder(f"{live}/{name}")
    if inner is not None:
        _go(live, inner)
    _set_temporary(f"{live}/{TMP}")


def park(box: str, folder: str, target: str, *, max_bytes: int, max_files: int) -> bool:
    """Put the files of a finished step away as `target`. False = there are too many of them."""
    live, parked = f"{box}/{folder}", f"{box}/{PARKED}/{target}"
    if not _is_folder(live):
        os.mkdir(parked, 0o700)
        return True
    try:
        os.chmod(live, 0o700)
        if not _is_within(live, max_bytes=max_bytes, max_files=max_files):
            return False
        os.rename(live, parked)
    except OSError:  # Nested so deep, or changed so fast, that it cannot be read.
        return False
    return True


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


def _reopen(parked: str, live: str) -> None:
    """Files that are open belong to the copy from now on: its own contents, its own offset."""
    for number in map(int, os.listdir("/proc/self/fd")):
        with suppress(OSError):
            path = os.readlink(f"/proc/self/fd/{number}")
            if path.startswith(parked):
                flags = fcntl.fcntl(number, fcntl.F_GETFL)
                copy = os.open(f"{live}/{path[len(parked) :]}", flags | os.O_CLOEXEC)
                with suppress(OSError):
                    os.lseek(copy, os.lseek(number, 0, os.SEEK_CUR), os.SEEK_SET)
                os.dup2(copy, number, inheritable=os.get_inheritable(number))
                os.close(copy)


def _set_temporary(path: str) -> None:
    if os.environ.get("TMPDIR") == path:
        return
    os.environ["TMPDIR"] = path
    tempfile = sys.modules.get("tempfile")
    if tempfile is not None:
        tempfile.tempdir = None  # pyright: ignore[reportAttributeAccessIssue]


def _make_folder(path: str) -> None:
    if not _is_folder(path):
        with suppress(FileNotFoundError):
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


def _is_within(top: str, *, max_bytes: int, max_files: int) -> bool:
    """Whether what is under `top` may be kept. Holes and second links count in full: a copy has neither."""
    num_bytes = 0
    for num_files, (_, entry) in enumerate(_walk(top), 1):
        if not entry.is_dir(follow_symlinks=False):
            num_bytes += entry.stat(follow_symlinks=False).st_size
        if num_bytes > max_bytes or num_files > max_files:
            return False
    return True


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
