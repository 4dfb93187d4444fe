"""Zip members: JSON out of an archive, with bounds. Nothing is unpacked to disk.

Members may be packed by deflate or zstd. Python reads zstd since 3.14; before, pyarrow does.
"""

import struct
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from ramify.core.errors import StoreError
from ramify.view.readers.parquet_rows import pyarrow
from ramify.view.readers.plain_files import MAX_DOCUMENT_BYTES, json_value, unreadable

MAX_MEMBERS: Final = 50_000
MAX_INDEX_BYTES: Final = 64 * 10**6
MAX_TOTAL_BYTES: Final = 2 * 10**9
"""Of all members unpacked."""
MAX_RATIO: Final = 1000
"""Unpacked to packed bytes of a member larger than `FREE_BYTES`. Long logs repeat themselves: some 100 is usual."""
FREE_BYTES: Final = 16 * 10**6
ZSTD: Final = 93
_END: Final = b"PK\x05\x06"
_FAULTS: Final = (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, ValueError, struct.error, zlib.error)


def names(path: Path) -> list[str]:
    """Names of the members. Raises `StoreError`."""
    return list(members(path))


def members(path: Path) -> Mapping[str, zipfile.ZipInfo]:
    """The members by name, checked against the bounds. Raises `StoreError`."""
    _check_index(path)
    try:
        with zipfile.ZipFile(path) as archive:
            found = archive.infolist()
    except OSError as error:
        raise unreadable(path, error) from error
    except _FAULTS as error:
        raise _damaged(path, "its index", error) from error
    if len(found) > MAX_MEMBERS or sum(info.file_size for info in found) > MAX_TOTAL_BYTES:
        raise StoreError(
            f"{path} has {len(found):,} members; at most {MAX_MEMBERS:,} with {MAX_TOTAL_BYTES:,} bytes together are "
            "read; show fewer samples"
        )
    for info in found:
        _check(path, info)
    return {info.filename: info for info in found}


def member(path: Path, info: zipfile.ZipInfo) -> Any:
    """The JSON value of a member. Raises `StoreError`, and `ConfigError` without what unpacks it."""
    place = f"{path}!{info.filename}"
    try:
        data = (
            _zstd(path, info)
            if info.compress_type == ZSTD and not hasattr(zipfile, "ZIP_ZSTANDARD")
            else _read(path, info)
        )
    except OSError as error:
        raise unreadable(path, error) from error
    except _FAULTS as error:
        raise _damaged(path, info.filename, error) from error
    return json_value(data, place)


def _read(path: Path, info: zipfile.ZipInfo) -> bytes:
    with zipfile.ZipFile(path) as archive, archive.open(info) as file:
        return file.read(info.file_size + 1)


def _zstd(path: Path, info: zipfile.ZipInfo) -> bytes:
    arrow = pyarrow(path)
    with path.open("rb") as file:
        file.seek(info.header_offset)
        head = struct.unpack("<4s22xHH", file.read(30))
        file.seek(head[1] + head[2], 1)
        packed = file.read(info.compress_size)
    try:
        data = arrow.CompressedInputStream(arrow.BufferReader(packed), "zstd").read(info.file_size + 1)
    except OSError as error:
        raise zipfile.BadZipFile(str(error)) from error
    if len(data) != info.file_size or zlib.crc32(data) != info.CRC:
        raise zipfile.BadZipFile("its checksum is wrong")
    return data


def _check(path: Path, info: zipfile.ZipInfo) -> None:
    """Raise `StoreError` for a member that is too large, packed like a bomb, or named like a path to elsewhere."""
    parts = info.filename.replace("\\", "/").split("/")
    if ".." in parts or parts[0] == "" or ":" in parts[0]:
        raise StoreError(
            f"{path}: the member {info.filename!r} is named like a path out of the archive; it is not opened"
        )
    ratio = info.file_size / max(1, info.compress_size)
    if info.file_size > MAX_DOCUMENT_BYTES or (info.file_size > FREE_BYTES and ratio > MAX_RATIO):
        raise StoreError(
            f"{path}: the member {info.filename!r} unpacks from {info.compress_size:,} to {info.file_size:,} bytes; at "
            f"most {MAX_DOCUMENT_BYTES:,} bytes, and {MAX_RATIO} times its size, are read"
        )


def _check_index(path: Path) -> None:
    """Raise `StoreError` if the index is larger than any that is read: it is taken into memory as a whole."""
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - 65_557))
        tail = file.read()
    end = tail.rfind(_END)
    is_large = end >= 0 and b"PK\x06\x07" in tail[max(0, end - 20) : end]
    if is_large or (end >= 0 and int.from_bytes(tail[end + 12 : end + 16], "little") > MAX_INDEX_BYTES):
        raise StoreError(f"{path}: its index has more than {MAX_INDEX_BYTES:,} bytes, the most that is read")


def _damaged(path: Path, what: str, error: Exception) -> StoreError:
    return StoreError(f"{path}: {what} cannot be read: {error}; the archive is damaged: write or copy it again")
