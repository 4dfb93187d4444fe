"""Export files: which files an export may write.

An export leaves a mark beside each file it makes: `.NAME.export`, with the SHA-256 of the file. A file that is there is
replaced only under `--force`, and only if its mark says that it is what an export made. A file that something else
made, or that was changed since, is never replaced. Files of a run and its data are refused in any case.
"""

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ramify.core.errors import ExportError
from ramify.store.journal import COPY
from ramify.store.layout import JOURNAL, LAYOUT, LAYOUT_COPY, LAYOUT_DRAFT, SHARDS
from ramify.store.store import CONFIGS, LOG

SCHEMA = "ramify.export-file/1"
RUN_FILES = frozenset({SHARDS, LAYOUT, LAYOUT_COPY, LAYOUT_DRAFT, COPY, LOG, *CONFIGS})


def files_of(write: Callable[..., Any], out: Path) -> list[Path]:
    """Every file that the exporter `write` makes for `--out`. One that makes more than `out` says so by `write.beside`,
    a function from `out` to the others."""
    if not out.name:
        raise ExportError(f"--out {out}: that is a folder; name the file to write")
    beside: Callable[[Path], Sequence[Path]] = getattr(write, "beside", lambda _: ())
    return [out, *beside(out)]


def refuse_files(files: Sequence[Path], *, data: str | None, is_forced: bool) -> None:
    """Raise `ExportError` if one of `files` may not be written. `data`: where the run's problems are; None = the run
    has no file of them."""
    for path in files:
        also = "" if path == files[0] else f" (which this format writes beside {files[0].name})"
        try:
            why = _own_fault(path, data) or _fault(path, is_forced=is_forced)
        except OSError as error:
            why = f"cannot be looked at: {error.strerror or error}; choose another --out"
        if why:
            raise ExportError(f"{path}{also} {why}; nothing was written")


def mark(files: Sequence[Path]) -> None:
    """Leave the mark of each of `files` that is there. Raises `ExportError` on an error of the disk."""
    for path in files:
        if path.is_file():
            text = json.dumps({"schema": SCHEMA, "file": path.name, "sha256": _sha256(path)})
            try:
                _mark_path(path).write_text(f"{text}\n", "utf-8")
            except OSError as error:
                raise ExportError(f"cannot write {_mark_path(path)}: {error.strerror or error}") from error


def _own_fault(path: Path, data: str | None) -> str:
    """Why `path` is refused whatever is said: it is a run's, or the data's. Empty = it is neither."""
    place = path.parent.resolve() / path.name
    for folder in place.parents:
        name = place.relative_to(folder).parts[0]
        is_run = (folder / JOURNAL).is_dir() or (folder / LAYOUT).is_file()
        if is_run and (name in RUN_FILES or name.startswith(JOURNAL)):
            return f"belongs to the run {folder}, and no export writes there; choose another --out"
    source = None if data is None else Path(data)
    if source is not None and source.exists():
        is_data = path.exists() and path.samefile(source)
        if is_data or (source.is_dir() and place.is_relative_to(source.resolve())):
            return f"belongs to the data of this run ({data}), and no export writes there; choose another --out"
    return ""


def _fault(path: Path, *, is_forced: bool) -> str:
    """Why a file may not be made, or replaced, at `path`. Empty = it may."""
    if os.path.lexists(mark := _mark_path(path)) and _marked(path) is None:
        return f"needs {mark.name} beside it, which exists and is no mark of an export; choose another --out"
    if not os.path.lexists(path):
        return ""
    if path.is_symlink() or not path.is_file():
        return "exists and is no plain file; choose another --out"
    if not is_forced:
        return "exists; choose another --out, or add --force if an earlier export made it"
    if _marked(path) != _sha256(path):
        return (
            "is not what an earlier export made, or was changed since, and --force replaces nothing else; move it away "
            "or choose another --out"
        )
    return ""


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
