"""Files: an export appears under its name when it is whole, or not at all."""

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ramify.core.errors import ExportError


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Yield a path to write to; it becomes `path` if nothing is raised. Raises `ExportError` if the disk refuses."""
    part = path.with_name(f".{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield part
        part.replace(path)
    except OSError as error:
        raise ExportError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        with suppress(OSError):
            part.unlink()


def json_line(values: Mapping[str, Any]) -> bytes:
    """One line of JSON in UTF-8, newline included; what no UTF-8 can say (lone surrogates) becomes `?`."""
    text = json.dumps(values, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8", errors="replace") + b"\n"


def write_lines(records: Iterable[Mapping[str, Any]], path: Path) -> int:
    """Write a line for each of `records` to `path`, which is replaced when all are written; returns their number."""
    number = 0
    with whole(path) as part, part.open("wb") as stream:
        for values in records:
            stream.write(json_line(values))
            number += 1
    return number
