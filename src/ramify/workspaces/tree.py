"""Tree: the files of a state as a table, and what is done to trees of files while nothing runs in them.

Every file is hostile. Links are never followed; pipes are kept, sockets and devices are not. Paths are bytes, since
names may hold anything but `/` and NUL. A tree that its owner locked (mode 000) is unlocked while it is read.

Sources: overlayfs of Linux (`Documentation/filesystems/overlayfs.rst`) for whiteouts and opaque folders.
"""

# ruff: noqa: PTH101, PTH102, PTH115, PTH118, PTH211 - paths are bytes

import hashlib
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

Kind = Literal["file", "folder", "link", "pipe"]
CHUNK_BYTES: Final = 1 << 20
OPAQUE: Final = ("user.overlay.opaque", "trusted.overlay.opaque")


class TreeFault(Exception):
    """A tree cannot be kept: too many files, too many bytes, or nested too deeply. The message says what is allowed."""


class TreeEntry(NamedTuple):
    """A file, folder, link or pipe."""

    kind: Kind
    mode: int
    """Permissions, without the kind."""
    said: bytes
    """Sha256 of a file's content; the target of a link; else nothing."""
    size: int
    layer: bytes
    """Folder of this machine under which it lies by its path."""

    @property
    def is_folder(self) -> bool:
        return self.kind == "folder"

    def is_as(self, other: "TreeEntry | None") -> bool:
        """Whether both are the same, wherever they lie."""
        return other is not None and self[:4] == other[:4]


Entries = Mapping[bytes, TreeEntry]
"""Path relative to the top -> entry. A folder is always there if something below it is."""


@dataclass(frozen=True, slots=True)
class TreeLimits:
    """What a state may hold. Sizes are apparent: a sparse file counts in full, since a copy of it would."""

    max_bytes: int
    max_files: int

    def check(self, num_files: int, num_bytes: int) -> None:
        """Raises `TreeFault`."""
        if num_files > self.max_files:
            raise TreeFault(f"there are more than {self.max_files} files and folders")
        if num_bytes > self.max_bytes:
            raise TreeFault(f"the files hold more than {self.max_bytes} bytes")


class Changes(NamedTuple):
    """What the upper layer of an overlay says."""

    entries: dict[bytes, TreeEntry]
    gone: set[bytes]
    """Paths of lower layers that are no more, with everything below them."""
    emptied: set[bytes]
    """Folders whose lower contents are no more."""


class Stamp(NamedTuple):
    """A file as it was when its content was known. The kernel sets ctime, and programs cannot."""

    inode: int
    ctime_ns: int
    mtime_ns: int
    size: int

    @classmethod
    def of(cls, found: os.stat_result) -> "Stamp":
        return cls(found.st_ino, found.st_ctime_ns, found.st_mtime_ns, found.st_size)


def walk(top: bytes, *, is_unlocked: bool = False) -> Iterator[tuple[bytes, os.stat_result]]:
    """Everything below `top`: path relative to it, and its state. A folder comes before its contents. With
    `is_unlocked`, folders that their owner had locked stay open to us: a state that is only ever copied from keeps
    modes in its entries. Raises `TreeFault` if folders are nested so deeply that the kernel takes no path."""
    waiting = [b""]
    locked: list[tuple[bytes, int]] = []
    try:
        while waiting:
            inner = waiting.pop()
            for entry in _listed(os.path.join(top, inner), locked):
                path = os.path.join(inner, entry.name)
                found = entry.stat(follow_symlinks=False)
                if stat.S_ISDIR(found.st_mode):
                    waiting.append(path)
                yield path, found
    except OSError as error:
        raise TreeFault(f"they cannot be read: {error.strerror}") from error
    finally:
        for path, mode in [] if is_unlocked else reversed(locked):
            with suppress(OSError):
                os.chmod(path, mode)


def _listed(folder: bytes, locked: list[tuple[bytes, int]]) -> "list[os.DirEntry[bytes]]":
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except PermissionError:
        locked.append((folder, stat.S_IMODE(os.lstat(folder).st_mode)))
        os.chmod(folder, 0o700)
        with os.scandir(folder) as entries:
            return list(entries)


def used(top: bytes) -> tuple[int, int]:
    """(Files, bytes) below a folder that may change meanwhile; what vanishes is not counted."""
    num_files = num_bytes = 0
    waiting = [top]
    while waiting:
        with suppress(OSError), os.scandir(waiting.pop()) as entries:
            for entry in entries:
                num_files += 1
                with suppress(OSError):
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    elif entry.is_file(follow_symlinks=False):
                        num_bytes += entry.stat(follow_symlinks=False).st_size
    return num_files, num_bytes


def changes(top: bytes, limits: TreeLimits) -> Changes:
    """What the upper layer at `top` says. Raises `TreeFault`."""
    told = Changes({}, set(), set())
    num_bytes = 0
    for path, found in walk(top):
        if _is_whiteout(found):
            told.gone.add(path)
            continue
        num_bytes += found.st_size if stat.S_ISREG(found.st_mode) else 0
        limits.check(len(told.entries) + 1, num_bytes)
        if stat.S_ISDIR(found.st_mode) and _is_opaque(os.path.join(top, path)):
            told.emptied.add(path)
        entry = entry_of(top, path, found)
        if entry is not None:
            told.entries[path] = entry
    return told


def mark_gone(top: bytes, upper: Changes) -> None:
    """Let a copy of an upper layer hide of lower ones what the layer hides. Raises OSError."""
    for path in upper.gone:
        os.mknod(os.path.join(top, path), stat.S_IFCHR)
    for path in upper.emptied:
        os.setxattr(os.path.join(top, path), OPAQUE[0], b"y")


def entry_of(top: bytes, path: bytes, found: os.stat_result, *, known: bytes | None = None) -> TreeEntry | None:
    """The entry of one path; None = a socket or a device, which no state keeps. `known` is the sha256 of the content
    where it need not be read. Raises `TreeFault`."""
    mode = stat.S_IMODE(found.st_mode)
    whole = os.path.join(top, path)
    try:
        match stat.S_IFMT(found.st_mode):
            case stat.S_IFDIR:
                return TreeEntry("folder", mode, b"", 0, top)
            case stat.S_IFREG:
                return TreeEntry("file", mode, known or hashed(whole), found.st_size, top)
            case stat.S_IFLNK:
                return TreeEntry("link", 0o777, os.readlink(whole), 0, top)
            case stat.S_IFIFO:
                return TreeEntry("pipe", mode, b"", 0, top)
            case _:
                return None
    except OSError as error:
        raise TreeFault(f"{_shown(path)} cannot be read: {error.strerror}") from error


def merged(lower: Entries, upper: Changes) -> dict[bytes, TreeEntry]:
    """The merged view of an upper layer and what lies below it. A new table; both arguments stay as they are."""
    below = upper.emptied | upper.gone
    for path, entry in upper.entries.items():
        old = lower.get(path)
        if old is not None and old.is_folder and not entry.is_folder:
            below.add(path)
    if below:
        kept = {path: entry for path, entry in lower.items() if path not in upper.gone and not _is_below(path, below)}
    else:
        kept = dict(lower)
    kept.update(upper.entries)
    return kept


def _is_below(path: bytes, tops: set[bytes]) -> bool:
    at = path.rfind(b"/")
    while at > 0:
        if path[:at] in tops:
            return True
        at = path.rfind(b"/", 0, at)
    return False


def copied(
    entries: Entries, target: bytes, *, owner: int | None, prefix: bytes = b"", may_link: bool = False
) -> tuple[dict[bytes, TreeEntry], dict[bytes, Stamp]]:
    """Make the folder `target` hold `entries`, each at its path after `prefix`. Returns the entries as they lie there,
    and the stamps of the files. With `may_link`, files become hard links to the old ones: only for trees that nobody
    writes any more.

    Raises `TreeFault` if there is no room. Mutates files below `target` only.
    """
    now: dict[bytes, TreeEntry] = {}
    stamps: dict[bytes, Stamp] = {}
    folders: list[tuple[bytes, int]] = []
    try:
        for path in sorted(entries):
            entry = entries[path]
            placed = prefix + path
            there = os.path.join(target, placed)
            match entry.kind:
                case "folder":
                    os.mkdir(there, 0o700)
                    folders.append((there, entry.mode))
                case "file":
                    source = os.path.join(entry.layer, path)
                    if not (may_link and _linked(source, there)):
                        copy_file(source, there, entry.mode, owner=owner)
                    stamps[placed] = Stamp.of(os.lstat(there))
                case "link":
                    os.symlink(entry.said, there)
                case "pipe":
                    os.mkfifo(there)
                    os.chmod(there, entry.mode)
            if owner is not None and entry.kind != "file":
                os.lchown(there, owner, owner)
            now[placed] = entry._replace(layer=target)
        for there, mode in reversed(folders):  # A folder may forbid writing, so its mode comes after its files.
            os.chmod(there, mode)
    except OSError as error:
        raise TreeFault(f"they cannot be copied: {error.strerror}") from error
    return now, stamps


def copy_file(source: bytes, target: bytes, mode: int, *, owner: int | None) -> None:
    """Copy one file with its mode and its mtime. Raises OSError."""
    with readable(source) as read:
        write = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            found = os.fstat(read)
            _poured(read, write)
            if owner is not None:
                os.fchown(write, owner, owner)
            os.fchmod(write, mode)  # After the owner: a change of owner clears set-uid.
            os.utime(write, ns=(found.st_atime_ns, found.st_mtime_ns))
        finally:
            os.close(write)


def hashed(path: bytes) -> bytes:
    """Sha256 of a file's content. Raises OSError."""
    digest = hashlib.sha256()
    with readable(path) as read:
        while chunk := os.read(read, CHUNK_BYTES):
            digest.update(chunk)
    return digest.digest()


def read_file(path: bytes, max_bytes: int) -> bytes:
    """The content of a file, at most `max_bytes` of it. Raises OSError."""
    with readable(path) as read:
        parts: list[bytes] = []
        while max_bytes > 0 and (part := os.read(read, min(max_bytes, CHUNK_BYTES))):
            parts.append(part)
            max_bytes -= len(part)
        return b"".join(parts)


@contextmanager
def readable(path: bytes) -> Iterator[int]:
    """A descriptor of a regular file; its mode is lifted for a moment where it forbids reading."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        read = os.open(path, flags)
    except PermissionError:
        mode = stat.S_IMODE(os.lstat(path).st_mode)
        os.chmod(path, mode | stat.S_IRUSR)
        try:
            read = os.open(path, flags)
        finally:
            os.chmod(path, mode)
    try:
        yield read
    finally:
        os.close(read)


def _poured(read: int, write: int) -> None:
    try:
        while os.copy_file_range(read, write, CHUNK_BYTES << 6):
            pass
    except OSError:  # Another file system, or a kernel that cannot.
        os.lseek(read, os.lseek(write, 0, os.SEEK_CUR), os.SEEK_SET)
        while chunk := os.read(read, CHUNK_BYTES):
            view = memoryview(chunk)
            while view:
                view = view[os.write(write, view) :]


def _linked(source: bytes, target: bytes) -> bool:
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:  # Too many links of one file, or a file system without them.
        return False
    return True


def _is_whiteout(found: os.stat_result) -> bool:
    return stat.S_ISCHR(found.st_mode) and found.st_rdev == 0


def _is_opaque(folder: bytes) -> bool:
    for name in OPAQUE:
        with suppress(OSError):
            if os.getxattr(folder, name, follow_symlinks=False) == b"y":
                return True
    return False


def _shown(path: bytes) -> str:
    return repr(path.decode(errors="replace"))
