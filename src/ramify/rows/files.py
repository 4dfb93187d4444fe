"""Files: an export appears under its name when it is whole, or not at all."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

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
