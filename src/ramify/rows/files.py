"""Files: which files an export may write. An export appears under its name only when it is complete.

An export leaves a mark beside each file it makes: `.NAME.export`, with the SHA-256 of the file. A file that is there is
replaced only with `force`, and only if its mark says that it is what an export made. A file that something else made,
or that was changed since, is never replaced.
"""

import hashlib
import json
import os
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec
import orjson

from ramify.core.errors import ExportError
from ramify.rows.json_numbers import JsonText

SCHEMA = "ramify.export-file/1"
_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
_STRICT = orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME
"""What `json` refuses is refused."""
_LEFT_TO_PYTHON = (TypeError, ValueError, OverflowError)
"""What is raised for lone surrogates, for whole numbers of more than 64 bits, and for keys that are no text."""
_OTHER_NUMBER = re.compile(
    rb"\xcb(?!\x00{8}|\x80\x00{7}|[\x3f\xbf][\x1b-\xff]|[\x40-\x42\xc0-\xc2]|[\x43\xc3][\x00-\x40])", re.DOTALL
)
"""In MessagePack, a float that is neither 0 nor of a size from 1e-4 to 1e16. orjson has another notation for those than
Python, and writes null for one that is not finite. Some text looks like it, which does no harm."""


def files_of(write: Callable[..., Any], path: Path) -> list[Path]:
    """Every file that the exporter `write` makes for `path`. One that makes more than `path` says so by `write.beside`,
    a function from `path` to the others."""
    if not path.name:
        raise ExportError(f"--out {path}: that is a folder; name the file to write")
    beside: Callable[[Path], Sequence[Path]] = getattr(write, "beside", lambda _: ())
    return [path, *beside(path)]


def refuse_files(files: Sequence[Path], *, force: bool, fault: Callable[[Path], str] = lambda path: "") -> None:
    """Raise `ExportError` if one of `files` may not be written. `fault` says what else is wrong with a path; empty =
    nothing."""
    for path in files:
        also = "" if path == files[0] else f" (which this format writes beside {files[0].name})"
        try:
            why = fault(path) or _fault(path, force=force)
        except OSError as error:
            why = f"cannot be looked at: {error.strerror or error}; choose another place"
        if why:
            raise ExportError(f"{path}{also} {why}; nothing was written")


@contextmanager
def whole(path: Path, *, force: bool = False) -> Iterator[Path]:
    """Yield a path to write to. If no error is raised, it becomes `path` and is marked. Raises `ExportError` if `path`
    may not be written, and on an error of the disk."""
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    refuse_files([path], force=force)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield part
        refuse_files([path], force=force)
        _mark(path, _sha256(part))
        part.replace(path)
    except OSError as error:
        raise ExportError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        with suppress(OSError):
            part.unlink()


def json_line(values: Mapping[str, Any]) -> bytes:
    """One line of JSON in UTF-8, with the newline. Lone surrogates, which UTF-8 cannot hold, become `?`."""
    parts: list[bytes] = []
    for is_text, group in groupby(values.items(), lambda item: isinstance(item[1], JsonText)):
        if is_text:
            parts += [b"%b:%b" % (_name(name), value) for name, value in group]
        else:
            parts.append(_json(dict(group))[1:-1])
    return b"{%b}\n" % b",".join(parts)


def write_lines(records: Iterable[Mapping[str, Any]], path: Path, *, force: bool = False) -> int:
    """Write one line for each of `records` to `path` and return their number. Raises as `whole`."""
    number = 0
    with whole(path, force=force) as part, part.open("wb") as stream:
        for values in records:
            stream.write(json_line(values))
            number += 1
    return number


def _json(value: Any) -> bytes:
    """As Python's `json` writes it. orjson writes what the two write in the same way, in a tenth of the time. Raises
    `ExportError` for a number that is not finite."""
    with suppress(*_LEFT_TO_PYTHON):
        if not _OTHER_NUMBER.search(msgspec.msgpack.encode(value)):
            return orjson.dumps(value, option=_STRICT)
    try:
        return _ENCODER.encode(value).encode("utf-8", errors="replace")
    except ValueError as error:
        raise ExportError(
            f"{str(value)[:200]} holds a number that is not finite, which JSON has none for; export with --to parquet"
        ) from error


@lru_cache
def _name(name: str) -> bytes:
    return _json(name)


def mark(files: Sequence[Path]) -> None:
    """Leave the mark of each of `files` that is there. Raises `ExportError` on an error of the disk."""
    for path in files:
        if path.is_file():
            try:
                _mark(path, _sha256(path))
            except OSError as error:
                raise ExportError(f"cannot write {_mark_path(path)}: {error.strerror or error}") from error


def _fault(path: Path, *, force: bool) -> str:
    """Why a file may not be made, or replaced, at `path`. Empty = it may."""
    if os.path.lexists(mark := _mark_path(path)) and _marked(path) is None:
        return f"needs {mark.name} beside it, which exists and is no mark of an export; choose another place"
    if not os.path.lexists(path):
        return ""
    if path.is_symlink() or not path.is_file():
        return "exists and is no plain file; choose another place"
    if not force:
        return "exists; choose another place, or add --force if an earlier export made it (in Python: force=True)"
    if _marked(path) != _sha256(path):
        return (
            "is not what an earlier export made, or was changed since, and --force replaces nothing else; move it away "
            "or choose another place"
        )
    return ""


def _mark(path: Path, sha256: str) -> None:
    text = json.dumps({"schema": SCHEMA, "file": path.name, "sha256": sha256})
    _mark_path(path).write_text(f"{text}\n", "utf-8")


def _mark_path(path: Path) -> Path:
    return path.with_name(f".{path.name}.export")


def _marked(path: Path) -> str | None:
    """The SHA-256 that the mark of `path` names; None = there is no mark."""
    mark = _mark_path(path)
    with suppress(OSError, ValueError):
        if mark.is_file() and not mark.is_symlink():
            values = json.loads(mark.read_text("utf-8"))
            if isinstance(values, dict) and (values.get("schema"), values.get("file")) == (SCHEMA, path.name):
                return str(values.get("sha256"))
    return None


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
