"""Plain files: JSON of other projects, read with bounds. Nothing in a file is ever run, unpickled or followed.

Errors are `StoreError`s with the place, the value and a remedy. `NaN` and `Infinity` are read, because these projects
write them.
"""

import json
import math
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast

from ramify.core.errors import StoreError
from ramify.core.visible import shortened

MAX_FILE_BYTES: Final = 10**9
"""Of all files of a run together."""
MAX_LINE_BYTES: Final = 64 * 10**6
MAX_DOCUMENT_BYTES: Final = 256 * 10**6
"""Of a file or a member of an archive that is one JSON value."""
VALUE_WIDTH: Final = 60

Table = Mapping[str, Any]


def damaged(place: str, what: str, value: Any, wanted: str) -> StoreError:
    """The error for a value that its format does not allow."""
    return StoreError(
        f"{place}: {what} is {shortened(repr(value), VALUE_WIDTH)}, but must be {wanted}; the file is damaged, or "
        "newer than this reader: write it again, or look at it with its own project"
    )


def table(place: str, what: str, value: Any) -> Table:
    """`value` if it is an object; otherwise raises `StoreError`."""
    if not isinstance(value, dict):
        raise damaged(place, what, value, "an object")
    return cast("Table", value)


def listed(place: str, what: str, value: Any) -> Sequence[Any]:
    """`value` if it is a list, nothing if it is absent; otherwise raises `StoreError`."""
    if value is not None and not isinstance(value, list):
        raise damaged(place, what, value, "a list")
    return cast("Sequence[Any]", value or ())


def inner(value: Any, *names: str) -> Any:
    """What stands in `value` under these names, one inside the other; None = it is not there."""
    for name in names:
        value = cast("Any", value).get(name) if isinstance(value, dict) else None
    return value


def number(value: Any) -> float | None:
    """`value` as a finite number; None = it is none."""
    if not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def json_value(data: bytes, place: str) -> Any:
    """The value of JSON text in UTF-8. Raises `StoreError`."""
    try:
        value = json.loads(data.decode("utf-8-sig"))
        return _without_halves(value) if b"\\ud" in data or b"\\uD" in data else value
    except RecursionError as error:
        raise StoreError(f"{place}: the JSON is nested too deeply to be read") from error
    except ValueError as error:
        raise StoreError(f"{place}: this is no JSON: {error}; the file is damaged: write or copy it again") from error


def _without_halves(value: Any) -> Any:
    """`value` with U+FFFD for every half of a surrogate pair, which no text in UTF-8 can hold."""
    match value:
        case str():
            return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        case list():
            return [_without_halves(each) for each in cast("Sequence[Any]", value)]
        case dict():
            return {_without_halves(name): _without_halves(each) for name, each in cast("Table", value).items()}
        case _:
            return value


def json_document(path: Path) -> Any:
    """The one value of a JSON file. Raises `StoreError`."""
    refuse_large([path], at_most=MAX_DOCUMENT_BYTES)
    return json_value(read_bytes(path), str(path))


def json_lines(path: Path, skipped: list[str]) -> Iterator[tuple[str, Table]]:
    """The objects of a JSONL file, each with its place. A last line that is still being written is named in `skipped`
    instead."""
    for place, line in lines(path):
        try:
            value = json_value(line, place)
        except StoreError:
            if line.endswith(b"\n"):
                raise
            skipped.append(f"{place}: the last line is not complete; the file may still be written")
        else:
            yield place, table(place, "the line", value)


def lines(path: Path) -> Iterator[tuple[str, bytes]]:
    """The lines of a file that are not blank, each with its place. Raises `StoreError`."""
    try:
        with path.open("rb") as file:
            for count in range(1, MAX_FILE_BYTES):
                line = file.readline(MAX_LINE_BYTES + 1)
                if len(line) > MAX_LINE_BYTES:
                    raise StoreError(
                        f"{path}:{count}: the line has more than {MAX_LINE_BYTES:,} bytes, the most that is read"
                    )
                if not line:
                    return
                if line.strip():
                    yield f"{path}:{count}", line
    except OSError as error:
        raise unreadable(path, error) from error


def read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise unreadable(path, error) from error


def unreadable(path: Path, error: OSError) -> StoreError:
    return StoreError(f"{path} cannot be read: {error.strerror or error}")


def refuse_large(paths: Sequence[Path], *, at_most: int = MAX_FILE_BYTES) -> None:
    """Raise `StoreError` for what is no plain file, and for files that are too large together."""
    total = 0
    for path in paths:
        try:
            found = path.stat()
        except OSError as error:
            raise unreadable(path, error) from error
        if not stat.S_ISREG(found.st_mode):
            raise StoreError(f"{path} is no plain file; it is not opened")
        total += found.st_size
        if total > at_most:
            raise StoreError(
                f"{path} cannot be shown: with it the run has {total:,} bytes, and at most {at_most:,} are read; cut "
                "the file, or name one file of a folder"
            )
