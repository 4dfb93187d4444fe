"""Torch file: files of `torch.save` that hold plain values. They are read and written without torch.

Such a file is a zip archive with one folder; `data.pkl` in it is the pickle (pytorch torch/serialization.py). Reading
runs nothing that the file names (`plain_pickle.py`). A file of torch's format before 1.6 is no zip archive and is
refused, and so is an archive whose entries are compressed, which `torch.save` never writes.
"""

import struct
import zipfile
from pathlib import Path
from typing import Any, Final

from ramify.core.errors import ExportError
from ramify.rows.files import whole
from ramify.service import plain_pickle

FOLDER: Final = "archive"
PICKLE: Final = "data.pkl"
MAX_BYTES: Final = 4 * 2**30
"""Most bytes of a pickle."""
_BESIDE: Final = {"version": b"3\n", "byteorder": b"little"}
"""The other entries that torch expects."""
_TORN: Final = (
    EOFError, NotImplementedError, OSError, OverflowError, RuntimeError, ValueError, struct.error, zipfile.BadZipFile
)  # fmt: skip
"""What `zipfile` raises for a file that is none, or that is torn."""


def read(path: Path) -> Any:
    """The value in a file. Raises `ExportError` that names the file and what is wrong with it."""
    try:
        return plain_pickle.loaded(_pickle(path))
    except ExportError as error:
        raise ExportError(f"{path} cannot be read: {error}") from error


def write(value: Any, path: Path, *, force: bool = False) -> None:
    """Write a file that `torch.load` reads. `force` replaces what an earlier export made. Raises `ExportError` for a
    value that is not plain, and if `path` may not be written."""
    data = plain_pickle.dumped(value)
    with whole(path, force=force) as part, zipfile.ZipFile(part, "w", zipfile.ZIP_STORED) as archive:
        for name, content in {PICKLE: data, **_BESIDE}.items():
            archive.writestr(zipfile.ZipInfo(f"{FOLDER}/{name}"), content)


def _pickle(path: Path) -> bytes:
    """The bytes of the pickle in an archive."""
    try:
        with zipfile.ZipFile(path) as archive:
            found = [entry for entry in archive.infolist() if entry.filename.rpartition("/")[2] == PICKLE]
            if len(found) != 1:
                raise ExportError(f"it has {len(found)} entries called {PICKLE}; a file of torch.save has one")
            _refuse_odd(found[0])
            return archive.read(found[0])
    except _TORN as error:
        raise ExportError(f"it is no file of torch.save, or was cut short: {error}") from error


def _refuse_odd(entry: zipfile.ZipInfo) -> None:
    if entry.compress_type != zipfile.ZIP_STORED:
        raise ExportError(f"{entry.filename} is compressed; torch.save compresses nothing")
    if entry.file_size > MAX_BYTES:
        raise ExportError(f"{entry.filename} has {entry.file_size:,} bytes; at most {MAX_BYTES:,} are read")
