"""Opening: what the beginning of a file shows, so that each reader can tell whether the file is its own."""

import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, cast

from ramify.core.errors import StoreError
from ramify.view.readers import parquet_rows, zip_members
from ramify.view.readers.plain_files import MAX_DOCUMENT_BYTES, json_value, lines, read_bytes, refuse_large, unreadable

MAX_TRIED_LINES: Final = 16
"""Lines that may be damaged before the first that can be read."""


@dataclass(frozen=True, slots=True)
class Opening:
    """What kind of file it is, and the names at its top: the keys of its first object, its members, its columns."""

    kind: Literal["lines", "document", "zip", "parquet", "torn", "empty"]
    """torn: it begins like JSON, and nothing can be read."""
    name: str
    """Of the file."""
    names: frozenset[str] = frozenset()
    first: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The first object of a JSON file."""

    def has(self, names: str) -> bool:
        return self.names.issuperset(names.split())


def opening(path: Path) -> Opening | None:
    """The opening of a plain file; None = no format that is known begins so. Raises `StoreError` and `ConfigError`."""
    try:
        with path.open("rb") as file:
            start = file.read(64)
    except OSError as error:
        raise unreadable(path, error) from error
    if start.startswith(b"PK"):
        refuse_large([path])
        if not zipfile.is_zipfile(path):
            return _torn_archive(path)
        return Opening("zip", path.name, frozenset(zip_members.names(path)))
    if start.startswith(b"PAR1"):
        refuse_large([path])
        return Opening("parquet", path.name, frozenset(parquet_rows.columns(path)))
    start = start.removeprefix(b"\xef\xbb\xbf").strip()
    if start.startswith(b"{"):
        refuse_large([path])
        return _json_opening(path)
    return None if start else Opening("empty", path.name)


def _torn_archive(path: Path) -> None:
    """Raise `StoreError` for a log of Inspect without its index, which is written last."""
    if path.suffix == ".eval":
        raise StoreError(f"{path} is no whole archive: its end is missing; write or copy it again")


def _json_opening(path: Path) -> Opening:
    """JSONL if its first line is an object, or else one value, or else JSONL with torn lines."""
    tried = [line for _, (_, line) in zip(range(MAX_TRIED_LINES), lines(path), strict=False)]
    if first := _object(tried[0]):
        return Opening("lines", path.name, frozenset(first), first)
    if path.stat().st_size <= MAX_DOCUMENT_BYTES and (first := _object(read_bytes(path))):
        return Opening("document", path.name, frozenset(first), first)
    found = next((first for line in tried[1:] if (first := _object(line))), None)
    return Opening("torn", path.name) if found is None else Opening("lines", path.name, frozenset(found), found)


def _object(data: bytes) -> Mapping[str, Any] | None:
    """The object of JSON text; None = it is none, or cannot be read."""
    try:
        value = json_value(data, "")
    except StoreError:
        return None
    return cast("Mapping[str, Any]", value) if isinstance(value, dict) else None
