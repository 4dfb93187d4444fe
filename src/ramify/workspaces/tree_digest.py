"""TreeDigest: one sha256 of a state's files, equal for equal states whatever way led there.

It covers path, mode, content and link target of everything below `/w`. Times, inodes, owners, empty layers, `/tmp` and
Python's bytecode, which holds times, stay out. Of a git repository it takes what a commit's time does not change: the
tree that each reference leads to, the entries of the index, and the plain files (config, hooks). Objects and logs stay
out: a repeated commit gets another hash. A reference to a packed object counts by its hash. The files are parsed here
and never by git, which would run programs that a hostile repository names.

Source: git's `Documentation/gitformat-index.txt`, `gitrepository-layout.txt`.
"""

import hashlib
import os
import re
import struct
import zlib
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from ramify.workspaces.tree import Entries, TreeEntry, read_file

TOP: Final = b"w"
"""Folder of a state's tree that is `/w`."""
SKIPPED: Final = frozenset({b"objects", b"logs", b"refs", b"index", b"packed-refs", b"ORIG_HEAD", b"FETCH_HEAD"})
BYTECODE: Final = b"/__pycache__"
MAX_OBJECT_BYTES: Final = 1 << 20
MAX_INDEX_BYTES: Final = 64 << 20
MAX_TAGS: Final = 5
_HASH: Final = re.compile(rb"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_STATIC: Final = 40
"""Bytes of an index entry before its object's hash: times, device, inode, mode, owner, size."""


def tree_digest(entries: Entries) -> str:
    """Sha256, in hex, of the state that `entries` list. Reads a few files of git repositories."""
    tops = {path[: -len(b"/objects")] for path in entries if path.endswith(b"/objects")}
    repositories = {top for top in tops if _is_repository(entries, top)}
    digest = hashlib.sha256()
    prefix = TOP + b"/"
    told = (path for path in sorted(entries) if (path.startswith(prefix) or path == TOP) and BYTECODE not in path)
    lines = [_line(path, entries[path]) for path in told if not (repositories and _is_skipped(path, repositories))]
    for top in sorted(repositories):
        if top.startswith(prefix) or top == TOP:
            lines += _of_repository(entries, top)
    digest.update(b"".join(lines))
    return digest.hexdigest()


def _line(path: bytes, entry: TreeEntry) -> bytes:
    return b"%s\0%s %o %d %s\n" % (path, entry.kind.encode(), entry.mode, len(entry.said), entry.said)


def _is_repository(entries: Entries, top: bytes) -> bool:
    wanted = ((b"objects", "folder"), (b"refs", "folder"), (b"HEAD", "file"))
    found = ((entries.get(top + b"/" + name), kind) for name, kind in wanted)
    return all(entry is not None and entry.kind == kind for entry, kind in found)


def _is_skipped(path: bytes, repositories: set[bytes]) -> bool:
    """Whether a path belongs to the part of a repository that is told in another way, or not at all."""
    at = path.rfind(b"/")
    inner_end = len(path)
    while at > 0:
        if path[:at] in repositories:
            name = path[at + 1 : inner_end]
            return name in SKIPPED or name.endswith(b"HEAD")
        inner_end = at
        at = path.rfind(b"/", 0, at)
    return False


def _of_repository(entries: Entries, top: bytes) -> Iterator[bytes]:
    refs = dict(_packed_refs(entries, top))
    prefix = top + b"/refs/"
    heads = top + b"/"
    for path, entry in entries.items():
        if entry.kind != "file":
            continue
        if path.startswith(prefix):
            refs[path[len(heads) :]] = _text(entries, path)
        elif path.endswith(b"HEAD") and path.startswith(heads) and b"/" not in path[len(heads) :]:
            name = path[len(heads) :]
            if name not in SKIPPED:
                refs[name] = _text(entries, path)
    for name in sorted(refs):
        yield b"%s ref %s %s\n" % (top, name, _tree_of(entries, top, refs[name]))
    yield b"%s index %s\n" % (top, _index(entries, top))


def _packed_refs(entries: Entries, top: bytes) -> Iterator[tuple[bytes, bytes]]:
    for line in _text(entries, top + b"/packed-refs", MAX_INDEX_BYTES).splitlines():
        value, _, name = line.partition(b" ")
        if _HASH.fullmatch(value) and name:
            yield name, value


def _text(entries: Entries, path: bytes, max_bytes: int = 4096) -> bytes:
    """The content of a file of the state; empty where there is none."""
    entry = entries.get(path)
    if entry is None or entry.kind != "file":
        return b""
    with suppress(OSError):
        return read_file(os.path.join(entry.layer, path), max_bytes).strip()  # noqa: PTH118 - paths are bytes
    return b""


def _tree_of(entries: Entries, top: bytes, value: bytes) -> bytes:
    """The hash of the tree that a commit or a tag leads to; `value` itself where it leads to none that can be read."""
    for _ in range(MAX_TAGS):
        if not _HASH.fullmatch(value):
            return value
        head, _, body = _loose(entries, top, value).partition(b"\0")
        word = {b"commit": b"tree ", b"tag": b"object "}.get(head.partition(b" ")[0])
        if word is None or not body.startswith(word):
            return value
        value = body[len(word) :].partition(b"\n")[0]
    return value


def _loose(entries: Entries, top: bytes, value: bytes) -> bytes:
    path = top + b"/objects/" + value[:2] + b"/" + value[2:]
    entry = entries.get(path)
    if entry is None or entry.kind != "file":
        return b""
    with suppress(OSError, zlib.error):
        data = read_file(os.path.join(entry.layer, path), MAX_OBJECT_BYTES)  # noqa: PTH118 - paths are bytes
        return zlib.decompressobj().decompress(data, 256)
    return b""


def _index(entries: Entries, top: bytes) -> bytes:
    """Sha256 over mode, object, flags and name of every entry of the index; of the whole file if it is of a kind that
    is not known."""
    path = top + b"/index"
    entry = entries.get(path)
    if entry is None or entry.kind != "file":
        return b""
    try:
        data = read_file(os.path.join(entry.layer, path), MAX_INDEX_BYTES)  # noqa: PTH118 - paths are bytes
        return b"".join(_index_lines(data))
    except (OSError, struct.error, ValueError):
        return entry.said.hex().encode()


def _index_lines(data: bytes) -> Iterator[bytes]:
    """Versions 2 and 3 with sha1. Raises ValueError or `struct.error` for others."""
    word, version, num_entries = struct.unpack_from(">4sII", data)
    if word != b"DIRC" or version not in (2, 3):
        raise ValueError("not an index of version 2 or 3")
    digest = hashlib.sha256()
    at = 12
    for _ in range(num_entries):
        (mode,) = struct.unpack_from(">I", data, at + 24)
        (flags,) = struct.unpack_from(">H", data, at + _STATIC + 20)
        name_at = at + _STATIC + 22 + (2 if flags & 0x4000 else 0)
        name_end = data.index(b"\0", name_at)
        digest.update(b"%o %d " % (mode, flags) + data[at + _STATIC : at + _STATIC + 20] + data[name_at : name_end + 1])
        at += (name_end - at + 8) & ~7
    yield digest.hexdigest().encode()
