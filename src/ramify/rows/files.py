"""Files: an export appears under its name only when it is complete."""

import json
import secrets
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ramify.core.errors import ExportError


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Yield a path to write to. If no error is raised, it becomes `path`. Raises `ExportError` on an error of the
    disk."""
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
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
    """One line of JSON in UTF-8, with the newline. Lone surrogates, which UTF-8 cannot hold, become `?`."""
    text = json.dumps(values, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8", errors="replace") + b"\n"


def write_lines(records: Iterable[Mapping[str, Any]], path: Path) -> int:
    """Write one line for each of `records` to `path` and return their number. `path` is replaced when all are
    written."""
    number = 0
    with whole(path) as part, part.open("wb") as stream:
        for values in records:
            stream.write(json_line(values))
            number += 1
    return number
