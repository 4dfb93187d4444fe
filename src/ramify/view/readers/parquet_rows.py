"""Parquet rows: the columns and rows of a Parquet file, with bounds. Needs pyarrow, an extra."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from ramify.core.errors import ConfigError, StoreError
from ramify.view.readers.plain_files import MAX_FILE_BYTES

ROWS_AT_ONCE: Final = 64
MAX_ROWS: Final = 10**6
"""A small file may claim any number of rows."""


def columns(path: Path) -> Sequence[str]:
    """Names of the columns. Raises `ConfigError` without pyarrow, and `StoreError`."""
    return tuple(_opened(path).schema_arrow.names)


def rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """All rows in order, each with its place. Raises as `columns` does."""
    file, count, num_bytes = _opened(path), 0, 0
    if file.metadata.num_rows > MAX_ROWS:
        raise StoreError(f"{path} has {file.metadata.num_rows:,} rows, and at most {MAX_ROWS:,} are read; cut the file")
    batches = file.iter_batches(batch_size=ROWS_AT_ONCE)
    while (batch := _read(path, lambda: next(batches, None))) is not None:
        num_bytes += batch.nbytes
        if num_bytes > MAX_FILE_BYTES:
            raise StoreError(
                f"{path} unpacks to more than {MAX_FILE_BYTES:,} bytes, the most that is read; cut the file"
            )
        for row in _read(path, batch.to_pylist):
            count += 1
            yield f"{path} row {count}", row


def pyarrow(path: Path) -> Any:
    """The package. Raises `ConfigError` where it is not installed."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise ConfigError(f"{path} needs pyarrow to be read: pip install 'ramify[parquet]'") from error
    return pyarrow


def _opened(path: Path) -> Any:
    return _read(path, lambda: pyarrow(path).parquet.ParquetFile(path))


def _read(path: Path, step: Callable[[], Any]) -> Any:
    """What one step of reading gives. Its faults, such as bytes that are no text, become `StoreError`s."""
    try:
        return step()
    except (pyarrow(path).ArrowException, OSError, ValueError) as error:
        raise StoreError(f"{path} is no whole Parquet file: {error}; write or copy it again") from error
