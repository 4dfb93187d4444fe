"""Field tables: map a class to its record, field by field. Both writing and reading follow from the table.

The type of a field in our class decides how it is packed. A table names only the fields whose type does not decide it.
A table is checked when it is made: both classes must have the same fields, so no field is forgotten.
"""

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from types import NoneType, UnionType
from typing import Any, Generic, Literal, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec
import numpy as np

from ramify.core.errors import StoreError
from ramify.core.segment import Floats_T, Ids_T
from ramify.store.packing import clean_text, pack_data, pack_number, unpack_data

V = TypeVar("V")
R = TypeVar("R")


class Packer(NamedTuple):
    """How one kind of value is written into a record and read back."""

    pack: Callable[[Any], Any]
    unpack: Callable[[Any], Any]


def _same(value: Any) -> Any:
    """For values that are the same in our class and in its record. Tables know this function, and do not call it."""
    return value


WORD = Packer(_same, _same)
"""A text from a closed set."""


class FieldTable(Generic[V, R]):
    """Field -> its packer, for the class `ours` and the record `theirs`, whose fields have the same names.

    `theirs` = `dict`: the fields are part of a larger record. `unrecorded` names fields that are not written and have
    their default when read. Fields may have the types in `known` besides plain types.
    """

    def __init__(
        self,
        ours: type[V],
        theirs: type[R],
        *,
        known: Mapping[Any, "Packs"] | None = None,
        unrecorded: Iterable[str] = (),
        **packers: Packer,
    ) -> None:
        self.ours = ours
        self.theirs = theirs
        names = [f.name for f in fields(ours) if f.name not in unrecorded]  # pyright: ignore[reportArgumentType]
        recorded = theirs.__struct_fields__ if issubclass(theirs, msgspec.Struct) else names
        if set(names) != set(recorded) or not packers.keys() <= set(names):
            raise TypeError(f"{ours.__name__} has the fields {names}, {theirs.__name__} has {recorded}")
        hints = get_type_hints(ours)
        types = {**_PLAIN, **(known or {})}
        chosen = {name: packers.get(name) or _packer_of(hints[name], name, types) for name in names}
        self._pack = _made(theirs, {name: packer.pack for name, packer in chosen.items()})
        self._unpack = _made(ours, {name: packer.unpack for name, packer in chosen.items()})

    def pack(self, value: V) -> R:
        """Raises `StoreError` on free-form data that cannot be kept."""
        try:
            return self._pack(value)
        except _Unkept as error:
            raise StoreError(f"{error.what.format(value)}: {error}") from None

    def unpack(self, record: Any) -> V:
        """The value that `record` holds. A larger record may hold other fields too."""
        return self._unpack(record)


Packs = Packer | FieldTable[Any, Any]
"""Anything that packs a value."""


def many(packer: Packs) -> Packer:
    return Packer(_of_each(packer.pack), _of_each(packer.unpack))


def optional(packer: Packs) -> Packer:
    return Packer(_unless_none(packer.pack), _unless_none(packer.unpack))


def one_of(*tables: FieldTable[Any, Any]) -> Packer:
    """A closed union: the table of the value's class writes it, and the table of the record's class reads it."""
    readers = {table.theirs: table.unpack for table in tables}

    def pack(value: Any) -> Any:
        for table in tables:
            if isinstance(value, table.ours):
                return table.pack(value)
        raise TypeError(f"{value!r} cannot be recorded; known are {[table.ours.__name__ for table in tables]}")

    return Packer(pack, lambda record: readers[type(record)](record))


def free_form(what: str) -> Packer:
    """Free-form data. `what` names the data in an error; `{0}` in it is the value that holds the data."""

    def pack(data: Any) -> Any:
        try:
            return pack_data(data) if data else {}
        except StoreError as error:
            raise _Unkept(what, str(error)) from None

    return Packer(pack, unpack_data)


class _Unkept(StoreError):
    """Free-form data cannot be kept. The table that holds the data adds which value it belongs to."""

    def __init__(self, what: str, why: str) -> None:
        super().__init__(why)
        self.what = what


def _of_each(convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return _same if convert is _same else lambda values: tuple(map(convert, values))


def _unless_none(convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return _same if convert is _same else lambda value: None if value is None else convert(value)


def _named(packer: Packs) -> Packer:
    return Packer(
        lambda values: {clean_text(name): packer.pack(value) for name, value in values.items()},
        lambda values: {name: packer.unpack(value) for name, value in values.items()},
    )


def _row(packers: Sequence[Packs]) -> Packer:
    return Packer(
        lambda values: tuple(packer.pack(value) for packer, value in zip(packers, values, strict=True)),
        lambda values: tuple(packer.unpack(value) for packer, value in zip(packers, values, strict=True)),
    )


def _array(dtype: str) -> Packer:
    """(T,) numbers as packed bytes, base64 on disk, so no logprob passes through JSON numbers. Bit-exact; arrays are
    read-only when read."""
    stored = np.dtype(dtype)
    native = stored.newbyteorder("=")
    return Packer(
        lambda values: values.astype(stored, copy=False).tobytes(),
        lambda data: np.frombuffer(data, stored).astype(native, copy=False),
    )


_PLAIN: Mapping[Any, Packer] = {
    bool: Packer(bool, _same),
    int: Packer(operator.index, _same),
    float: Packer(pack_number, float),
    str: Packer(clean_text, _same),
    Ids_T: _array("<i4"),
    Floats_T: _array("<f4"),
}


def _made(cls: type[V], converters: Mapping[str, Callable[[Any], Any]]) -> Callable[[Any], V]:
    """A function that makes a `cls` of a value that has the same attributes, each through its converter. It is
    compiled, as `dataclasses` does: a run packs several values a turn, and a loop over the fields takes twice as
    long."""
    known: dict[str, Any] = {"made": cls}
    arguments: list[str] = []
    for name, convert in converters.items():
        if convert is _same:
            arguments.append(f"{name}=value.{name}")
        else:
            known[f"_{name}"] = convert
            arguments.append(f"{name}=_{name}(value.{name})")
    exec(f"def convert(value): return made({', '.join(arguments)})", known)
    return known["convert"]


def _packer_of(hint: Any, name: str, types: Mapping[Any, Packs]) -> Packs:
    """The packer of a field called `name` of type `hint`."""
    if hint in types:
        return types[hint]
    match get_origin(hint), get_args(hint):
        case kind, _ if kind is Literal:
            return WORD
        case kind, (inner, none) if kind in (Union, UnionType) and none is NoneType:
            return optional(_packer_of(inner, name, types))
        case kind, (inner, more) if kind is tuple and more is ...:
            return many(_packer_of(inner, name, types))
        case kind, inner if kind is tuple:
            return _row([_packer_of(each, name, types) for each in inner])
        case kind, (_, inner) if kind is Mapping and inner is Any:
            return free_form(f"the {name}")
        case kind, (_, inner) if kind is Mapping:
            return _named(_packer_of(inner, name, types))
        case _:
            raise TypeError(f"field {name!r}: nothing says how a value of type {hint} is recorded")
