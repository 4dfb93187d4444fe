"""Folders: the files of a state, inside the sandbox.

A running step has the place `box/0` with the folder `work`, where it starts, and `tmp`, its TMPDIR; and the shared
folders `/tmp` and `/dev/shm`, where there are such. One step runs at a time. When it is over, a process that never ran
foreign code copies its files to `box/1` and empties the shared folders, and the host moves the copy to
`box/.parked/NAME`, which is read-only inside. So every step starts with a copy of files that no other step ever held
open, and its changes reach no other step. Standard library only. Every file is treated as hostile: links are copied as
links, pipes and sockets are not copied, and no link is followed.
"""

# ruff: noqa: PTH101, PTH102, PTH103, PTH104, PTH106, PTH108, PTH109, PTH115, PTH116, PTH208, PTH211 - paths are text here: pathlib is slow to import and knows no descriptors

import os
import stat
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import count
from typing import Final

PARKED, TRASH = ".parked", ".trash"
"""In the box: files of waiting states, and discarded files; only the host changes them."""
LIVE, COPY = "0", "1"
"""In the box: the place where a step runs, and the place of the copy of its files that its state keeps."""
WORK, TMP = "work", "tmp"
PARTS: Final = (WORK, TMP, "root_tmp", "shm")
"""Folders of a parked state: those of its place, then those of the shared folders."""
PLACE_MODE, SHARED_MODE = 0o733, 0o1777
_CHUNK_BYTES: Final = 1 << 20


def make_box(box: str, owner: int | None) -> None:
    """Make the places, which everybody may use but nobody may list, and the other folders. `owner` None = the process
    that makes them."""
    modes = {PARKED: 0o311, TRASH: 0o333, LIVE: PLACE_MODE, COPY: PLACE_MODE, ".": 0o311}
    for name, mode in modes.items():
        path = f"{box}/{name}"
        os.makedirs(path, exist_ok=True)
        os.chmod(path, mode)
        if owner is not None:
            os.chown(path, owner, owner)


def take(box: str, folder: str, source: str, *, shared: Sequence[str] = (), here: str = "") -> None:
    """Fill `folder` and the `shared` folders with a copy of the files parked as `source` ('' = none), and change to the
    folder `here`, or to `work` where that is missing.

    Raises OSError if the parent's files are gone, there is no room for the copy, or `folder` was not empty.
    """
    live, parked = f"{box}/{folder}", f"{box}/{PARKED}/{source}"
    if source:
        os.stat(parked)
    for name, path in parts(live, shared).items():
        if path not in shared:
            os.mkdir(path, 0o700)
        if source and _is_folder(f"{parked}/{name}"):
            _copy_all(f"{parked}/{name}", path)
    _go(here, f"{live}/{WORK}")
    _set_temporary(f"{live}/{TMP}")


def here() -> str:
    """This process's working directory; empty = it was removed."""
    try:
        return os.getcwd()
    except OSError:
        return ""


def parts(live: str, shared: Sequence[str]) -> dict[str, str]:
    """Where the files of a running step are, by the names of the folders that a parked state has."""
    return dict(zip(PARTS, (f"{live}/{WORK}", f"{live}/{TMP}", *shared), strict=False))


def keep(box: str, *, shared: Sequence[str]) -> None:
    """Copy the files of a finished step to the place `COPY`. Raises OSError if there is no room for the copy."""
    for name, path in parts(f"{box}/{LIVE}", shared).items():
        if _is_folder(path):
            os.mkdir(f"{box}/{COPY}/{name}", 0o700)
            _copy_all(path, f"{box}/{COPY}/{name}")


def fits(live: str, *, max_bytes: int, max_files: int, shared: Sequence[str] = ()) -> bool:
    """Whether a state may keep its step's files. Sparse files and hard links count in full, because a copy keeps
    neither."""
    num_bytes = num_files = 0
    try:
        for top in filter(_is_folder, parts(live, shared).values()):
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
    with suppress(FileNotFoundError):
        empty(top)
        os.rmdir(top)


def empty(top: str) -> None:
    """Remove everything in a folder that nobody uses, as `remove` does. Nothing happens if it is no folder."""
    numbers = count()
    if not _is_folder(top):
        return
    os.chmod(top, 0o700)
    while names := os.listdir(top):
        for name in names:
            _remove_level(f"{top}/{name}", (f"{top}/.ramify-{number}" for number in numbers))


def _remove_level(path: str, free: Iterator[str]) -> None:
    if not _is_folder(path):
        os.unlink(path)
        return
    os.chmod(path, 0o700)
    for inner in os.listdir(path):
        _rename(f"{path}/{inner}", next(name for name in free if not os.path.lexists(name)))
    os.rmdir(path)


def _rename(path: str, target: str) -> None:
    """Move a folder to another parent, and unlock it first if its owner had locked it: the move writes into it."""
    try:
        os.rename(path, target)
    except PermissionError:
        os.chmod(path, 0o700)
        os.rename(path, target)


def _go(*wanted: str) -> None:
    for path in wanted:
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
    mode = stat.S_IMODE(status.st_mode) | stat.S_IRUSR  # A parked file that cannot be read could not be copied.
    if mode != stat.S_IMODE(status.st_mode):
        os.chmod(source, mode)
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
