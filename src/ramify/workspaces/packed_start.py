"""PackedStart: a start folder as one file, to send it to another machine.

A folder becomes a tar file with everything that a state keeps: files, folders, links and pipes, with modes and times.
A tar file is sent as it is.
"""

import hashlib
import os
import re
import stat
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from ramify.workspaces.tree import TreeFault, TreeLimits, readable, walk

CHUNK_BYTES: Final = 1 << 20
MTIME_NS: Final = "RAMIFY.mtime_ns"
"""The record of a member that holds its time of change."""
TIME_NS: Final = re.compile(r"-?[0-9]{1,18}|[1-8][0-9]{18}")
"""Nanoseconds since 1970 that fit 64 bits."""
KINDS: Final = {stat.S_IFDIR: tarfile.DIRTYPE, stat.S_IFLNK: tarfile.SYMTYPE, stat.S_IFIFO: tarfile.FIFOTYPE}
AnyPath = str | bytes | os.PathLike[str] | os.PathLike[bytes]


@dataclass(frozen=True)
class PackedStart:
    """A start folder or tar file. Its file has no name, so it is gone with this process."""

    file: IO[bytes]
    is_folder: bool
    digest: str
    """Sha256 of the file."""
    size: int

    def __del__(self) -> None:
        self.file.close()

    def part(self, offset: int, num_bytes: int) -> bytes:
        """Threads may read at once."""
        return os.pread(self.file.fileno(), num_bytes, offset)


def pack(source: Path, limits: TreeLimits) -> PackedStart:
    """Pack a folder, or take a tar file. Raises `TreeFault` and OSError."""
    if source.is_file():
        return _finished(source.open("rb"), is_folder=False)
    if not source.is_dir():
        raise TreeFault(f"{str(source)!r} is neither a folder nor a tar file")
    file = tempfile.TemporaryFile()  # noqa: SIM115 - it stays open
    try:
        with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as archive:
            _fill(archive, os.fsencode(source), limits)
    except BaseException:
        file.close()
        raise
    return _finished(file, is_folder=True)


def unpack(file: Path, target: Path) -> None:
    """Make `target`, an empty folder, hold what `pack` packed. Every path must be new and lie in a folder of the file,
    so none leads out through a link. Raises `TreeFault` and OSError."""
    try:
        with _ExactTimes.open(file, "r:") as archive:
            folders, seen = {""}, set[str]()
            for member in archive:
                parent, _, name = member.name.rpartition("/")
                is_known = member.isfile() or member.type in KINDS.values()
                is_inside = parent in folders and name not in ("", ".", "..") and not member.name.startswith("/")
                if member.name in seen or not is_inside or not is_known:
                    raise TreeFault(f"the packed folder may not hold {member.name!r}")
                seen.add(member.name)
                if member.isdir():
                    folders.add(member.name)
            archive.extraction_filter = lambda member, _: member  # The default one drops modes.
            archive.extractall(target)
    except tarfile.TarError as error:
        raise TreeFault(f"the packed folder cannot be unpacked: {error}") from error


class _ExactTimes(tarfile.TarFile):
    """Gives what it extracts the times that were packed, to the nanosecond; `tarfile` itself keeps them as floats."""

    def utime(self, tarinfo: tarfile.TarInfo, targetpath: AnyPath) -> None:
        packed = tarinfo.pax_headers.get(MTIME_NS)
        if packed is None:
            super().utime(tarinfo, targetpath)
            return
        if TIME_NS.fullmatch(packed) is None:
            raise TreeFault(f"the packed folder may not hold the time {packed[:100]!r}")
        os.utime(targetpath, ns=(int(packed), int(packed)))


def _fill(archive: tarfile.TarFile, top: bytes, limits: TreeLimits) -> None:
    num_bytes = 0
    for num_files, (path, found) in enumerate(walk(top), 1):
        num_bytes += found.st_size if stat.S_ISREG(found.st_mode) else 0
        limits.check(num_files, num_bytes)
        member = tarfile.TarInfo(os.fsdecode(path))
        member.mode, member.mtime = stat.S_IMODE(found.st_mode), int(found.st_mtime)
        member.pax_headers = {MTIME_NS: str(found.st_mtime_ns)}
        whole = os.path.join(top, path)  # noqa: PTH118 - paths are bytes
        if stat.S_ISREG(found.st_mode):
            member.size = found.st_size
            with readable(whole) as descriptor, open(descriptor, "rb", closefd=False) as file:
                archive.addfile(member, file)
        elif (kind := KINDS.get(stat.S_IFMT(found.st_mode))) is not None:
            member.type = kind
            if kind == tarfile.SYMTYPE:
                member.linkname = os.fsdecode(os.readlink(whole))  # noqa: PTH115 - paths are bytes
            archive.addfile(member)


def _finished(file: IO[bytes], *, is_folder: bool) -> PackedStart:
    digest, size = hashlib.sha256(), 0
    file.seek(0)
    while chunk := file.read(CHUNK_BYTES):
        digest.update(chunk)
        size += len(chunk)
    return PackedStart(file, is_folder, digest.hexdigest(), size)
