"""Inherited: separates a fork from the files and memory it shares with its parent state. Runs inside the sandbox.

A state notes the names of its open and mapped files before it waits. Its fork replaces them by the files of these names
in its own copy, each with its own offset. Files without a name and shared memory are copied. Pipes, sockets, and files
outside the state's folders stay shared. Standard library only.
"""

# ruff: noqa: PTH108, PTH115, PTH123, PTH208 - paths are text here: pathlib is slow to import and knows no descriptors

import ctypes
import fcntl
import os
import re
import stat
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

_PROTECTIONS: Final = (1, 2, 4)
_PROT_READ, _PROT_WRITE, _ = _PROTECTIONS
_MAP_SHARED, _MAP_FIXED, _MAP_ANONYMOUS = 1, 0x10, 0x20
_MREMAP_MAYMOVE, _MREMAP_FIXED = 1, 2
_FAILED: Final = ctypes.c_void_p(-1).value
_CHUNK_BYTES: Final = 1 << 20
_KEPT_FLAGS: Final = os.O_ACCMODE | os.O_APPEND
_DELETED: Final = " (deleted)"
_SHARED: Final = re.compile(rb"^([0-9a-f]+)-([0-9a-f]+) ([r-][w-][x-])s ([0-9a-f]+) \S+ \d+ +(/.*)$", re.MULTILINE)
"""A line of /proc/self/maps for shared memory: start, end, rights, offset and path."""
_SHARERS: Final = frozenset({"mmap", "_multiprocessing", "_posixshmem"})
"""The only modules through which Python shares memory. Reading the whole memory map takes 0.5 ms of a call's 4 ms."""

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = _libc.mremap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


class OpenFiles:
    """The names of this process's open and mapped files under `roots`, by descriptor and by address. Every path ends in
    `/`."""

    def __init__(self, roots: tuple[str, ...]) -> None:
        opened = ((number, _path(number)) for number in map(int, os.listdir("/proc/self/fd")))
        self.names = {number: path for number, path in opened if _is_named(path, roots)}
        self.mapped = {start: path for start, _, _, _, path in _shared() if _is_named(path, roots)}

    def separate(self, *, spare: str) -> None:
        """Replace them by the files that have these names now; files without a name are copied through `spare`. Raises
        OSError if there is no room for a copy."""
        for number in map(int, os.listdir("/proc/self/fd")):
            _separate_file(number, self.names.get(number), spare)
        for start, end, rights, offset, path in _shared():
            protection = sum(bit for bit, letter in zip(_PROTECTIONS, rights, strict=True) if letter != "-")
            name = self.mapped.get(start)
            if name is not None and _map_file(name, start, end - start, protection, offset):
                continue
            if name is not None or path.endswith(_DELETED):
                _copy_memory(start, end, protection)


def _path(number: int) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{number}")
    except FileNotFoundError:  # The descriptor that listed them.
        return ""


def _is_named(path: str, roots: tuple[str, ...]) -> bool:
    return (path + "/").startswith(roots) and not path.endswith(_DELETED)


def _shared() -> Iterator[tuple[int, int, str, int, str]]:
    if _SHARERS.isdisjoint(sys.modules):
        return
    with open("/proc/self/maps", "rb") as file:
        maps = file.read()
    for start, end, rights, offset, path in _SHARED.findall(maps):
        yield int(start, 16), int(end, 16), rights.decode(), int(offset, 16), os.fsdecode(path)


def _separate_file(number: int, name: str | None, spare: str) -> None:
    path = _path(number)
    if not path or (name is None and not path.endswith(_DELETED)):
        return
    mode = os.fstat(number).st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        return
    flags = fcntl.fcntl(number, fcntl.F_GETFL)
    try:
        if name is None:
            raise FileNotFoundError
        own = os.open(name, flags | os.O_CLOEXEC)
    except OSError:
        own = os.open(spare, os.O_PATH | os.O_CLOEXEC) if stat.S_ISDIR(mode) else _copied(number, flags, spare)
    with suppress(OSError):  # Some descriptors only stand for a path.
        os.lseek(own, os.lseek(number, 0, os.SEEK_CUR), os.SEEK_SET)
    os.dup2(own, number, inheritable=os.get_inheritable(number))
    os.close(own)


def _copied(number: int, flags: int, spare: str) -> int:
    """A descriptor like `number`, of a new copy of its file that has no name either."""
    name = f"{spare}.ramify-{number}"
    own = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        source = os.open(f"/proc/self/fd/{number}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            at = 0
            while at < (size := os.fstat(source).st_size):
                at += os.sendfile(own, source, at, size - at) or size
        finally:
            os.close(source)
        return os.open(name, flags & _KEPT_FLAGS | os.O_CLOEXEC)
    finally:
        os.close(own)
        os.unlink(name)


def _map_file(path: str, start: int, length: int, protection: int, offset: int) -> bool:
    """Map the same part of `path` at the same address. False = there is no such file, or not with these rights."""
    try:
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        return _libc.mmap(start, length, protection, _MAP_SHARED | _MAP_FIXED, file, offset) != _FAILED
    finally:
        os.close(file)


def _copy_memory(start: int, end: int, protection: int) -> None:
    """Copy shared memory to the same address, into memory shared only with processes that this one starts."""
    for at in range(start, end, _CHUNK_BYTES):
        length = min(_CHUNK_BYTES, end - at)
        fresh = _libc.mmap(None, length, _PROT_READ | _PROT_WRITE, _MAP_SHARED | _MAP_ANONYMOUS, -1, 0)
        if fresh == _FAILED:
            raise OSError(ctypes.get_errno(), "no memory for a copy of shared memory")
        if not protection & _PROT_READ:
            _libc.mprotect(at, length, _PROT_READ)
        ctypes.memmove(fresh, at, length)
        _libc.mprotect(fresh, length, protection)
        size, flags = ctypes.c_size_t(length), _MREMAP_MAYMOVE | _MREMAP_FIXED
        if _libc.mremap(ctypes.c_void_p(fresh), size, size, flags, ctypes.c_void_p(at)) == _FAILED:
            raise OSError(ctypes.get_errno(), "a copy of shared memory could not take its place")
