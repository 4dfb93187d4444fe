"""Rows of Parquet files and of Arrow files, batch by batch. Needs pyarrow, an extra.

Arrow files are streams, as `Dataset.save_to_disk` writes them, or files with a footer. Unused columns are not read. A
column is skipped if JSON cannot hold a part of it: bytes (images, audio), times, decimals and maps. If a setting names
such a column, or a file is damaged or incomplete, a `ConfigError` is raised. A column of JSON text (Arrow's type of
that name) is decoded; inside another column it is skipped.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec

from ramify.core.errors import ConfigError
from ramify.tasks.data_row import Row, RowFault, RowPlace, WantedColumns, refuse_same_names

BATCH: Final = 1024
"""Most rows held as Python values at one time."""

_FILE_MARK = b"ARROW1"
_STREAM_END = b"\xff\xff\xff\xff\0\0\0\0"
"""The last bytes of an Arrow stream (Arrow columnar format, IPC streaming format)."""
_JSON_TEXT = "arrow.json"


def parquet_rows(path: Path, wanted: WantedColumns) -> Iterator[Row]:
    """Every row of a Parquet file. Raises `ConfigError`."""
    arrow = _pyarrow()
    with _damage_named(path, arrow), arrow.parquet.ParquetFile(path) as file:
        columns = _Columns(arrow, path, wanted, file.schema_arrow)
        number = 0
        for batch in file.iter_batches(batch_size=BATCH, columns=columns.names):
            yield from columns.rows(batch, number)
            number += batch.num_rows


def arrow_rows(path: Path, wanted: WantedColumns) -> Iterator[Row]:
    """Every row of an Arrow file. Raises `ConfigError`."""
    arrow = _pyarrow()
    with _damage_named(path, arrow), arrow.memory_map(str(path)) as source:
        columns: _Columns | None = None
        number = 0
        for batch in _batches(path, source, arrow):
            columns = columns or _Columns(arrow, path, wanted, batch.schema)
            for start in range(0, batch.num_rows, BATCH):
                yield from columns.rows(batch.slice(start, BATCH), number + start)
            number += batch.num_rows


def _pyarrow() -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise ConfigError("Parquet and Arrow files need pyarrow: pip install 'ramify[parquet]'") from error
    return pyarrow


@contextmanager
def _damage_named(path: Path, arrow: Any) -> Iterator[None]:
    try:
        yield
    except (OSError, arrow.ArrowException) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error


def _batches(path: Path, source: Any, arrow: Any) -> Iterator[Any]:
    """The batches of a stream or of a file with a footer."""
    if source.read_at(len(_FILE_MARK), 0) == _FILE_MARK:
        file = arrow.ipc.open_file(source)
        yield from (file.get_batch(index) for index in range(file.num_record_batches))
        return
    yield from arrow.ipc.open_stream(source)
    # A stream that was cut between two batches reads without an error.
    if source.read_at(len(_STREAM_END), source.size() - len(_STREAM_END)) != _STREAM_END:
        raise ConfigError(f"{path} is incomplete: it ends before the end of its stream; write it again")


class _Columns:
    """The columns of one file that are read."""

    def __init__(self, arrow: Any, path: Path, wanted: WantedColumns, schema: Any) -> None:
        self._arrow = arrow
        self._path = path
        refuse_same_names(path, schema.names)
        self._refuse(wanted, schema)
        heads = wanted.heads()
        self.names = [
            field.name
            for field in schema
            if field.name in heads or (wanted.has_others and self._can_be_json(field.type, is_column=True))
        ]
        self._texts = [name for name in self.names if self._is_json_text(schema.field(name).type)]

    def rows(self, batch: Any, number: int) -> Iterator[Row]:
        """The rows of a batch of the file. `number` is how many rows come before the batch."""
        # A Parquet file asked for `a` also returns a column called `a.b`.
        chosen = batch.select(self.names)
        for index, row in enumerate(self._values(chosen), start=number + 1):
            place = RowPlace(self._path, index, is_line=False)
            yield RowFault(place, row) if isinstance(row, str) else self._with_texts(place, row)

    def _values(self, batch: Any) -> Iterator[dict[str, Any] | str]:
        """Rows, or the fault of a row. Arrow fails on a whole batch if one row is bad, so they are then read singly."""
        try:
            yield from batch.to_pylist()
        except (ValueError, OverflowError):
            for row in range(batch.num_rows):
                try:
                    yield batch.slice(row, 1).to_pylist()[0]
                except UnicodeDecodeError as error:
                    yield f"a text is not UTF-8: {error.reason} at byte {error.start}; write it as UTF-8"
                except (ValueError, OverflowError) as error:
                    yield f"a value cannot be read: {error}"

    def _with_texts(self, place: RowPlace, row: dict[str, Any]) -> Row:
        """The row with its columns of JSON text decoded."""
        for name in self._texts:
            try:
                row[name] = None if row[name] is None else msgspec.json.decode(row[name])
            except (msgspec.DecodeError, RecursionError) as error:
                return RowFault(place, f"column {name!r} holds a text that is not JSON: {error}")
        return place, row

    # -- types --------------------------------------------------------------------------------------------------------

    def _refuse(self, wanted: WantedColumns, schema: Any) -> None:
        """Raise `ConfigError` for every mapped column that is missing, or for one that JSON cannot hold."""
        types = {setting: self._type_at(schema, column) for setting, column in wanted.named.items()}
        missing = {setting: wanted.named[setting] for setting, found in types.items() if found is None}
        if missing:
            raise ConfigError(f"{self._path}: {wanted.missing(missing, self._names_in(schema))}")
        for setting, found in types.items():
            column = wanted.named[setting]
            if not self._can_be_json(found, is_column=column in schema.names):
                what = f"data.{setting} = {column!r}: the column has the type {found}, which JSON cannot hold"
                raise ConfigError(f"{self._path}: {what}; name another column")

    def _type_at(self, schema: Any, column: str) -> Any:
        """The type of a column or of a dotted path; None = it does not exist. JSON text may hold anything."""
        if column in schema.names:
            return schema.field(column).type
        head, *path = column.split(".")
        found: Any = schema.field(head).type if head in schema.names else None
        if self._is_json_text(found):
            return self._arrow.string()
        for name in path:
            if found is None or not self._arrow.types.is_struct(found) or found.get_field_index(name) < 0:
                return None
            found = found.field(name).type
        return found

    def _names_in(self, schema: Any) -> set[str]:
        inner = (field for field in schema if self._arrow.types.is_struct(field.type))
        return {*schema.names, *(f"{field.name}.{part.name}" for field in inner for part in field.type)}

    def _can_be_json(self, kind: Any, *, is_column: bool = False) -> bool:
        """Whether JSON can hold all values of a type. JSON text is accepted only as a whole column."""
        arrow, types = self._arrow, self._arrow.types
        if isinstance(kind, arrow.BaseExtensionType):
            return self._can_be_json(kind.storage_type) and (is_column or not self._is_json_text(kind))
        if types.is_struct(kind):
            return all(self._can_be_json(field.type) for field in kind)
        lists = (types.is_list, types.is_large_list, types.is_fixed_size_list, types.is_list_view)
        encoded = (types.is_large_list_view, types.is_dictionary, types.is_run_end_encoded)
        if any(is_one(kind) for is_one in (*lists, *encoded)):
            return self._can_be_json(kind.value_type)
        texts = (types.is_string, types.is_large_string, types.is_string_view)
        numbers = (types.is_null, types.is_boolean, types.is_integer, types.is_floating)
        return any(is_one(kind) for is_one in (*texts, *numbers))

    def _is_json_text(self, kind: Any) -> bool:
        return isinstance(kind, self._arrow.BaseExtensionType) and kind.extension_name == _JSON_TEXT
