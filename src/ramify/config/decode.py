"""Decode: turns plain data into a tree of config dataclasses and reports all faults at once.

It is strict: values are converted only from a whole number to a float, from a list to a tuple, and from the word
`none`, which clears an optional value (TOML has no null). An unknown key is a fault that names the nearest known key.
Each fault is a `ConfigFault` with the dotted path of its key, so that the caller can say which file or option the key
came from.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from ramify.core.errors import RamifyError, nearest

T = TypeVar("T")
CLEARED = "none"


@dataclass(frozen=True, slots=True)
class ConfigFault:
    """A fault of the value at a dotted path ('' = the whole)."""

    path: str
    message: str


def decode(kind: Callable[..., T], data: Mapping[str, Any], *, path: str = "") -> tuple[T | None, list[ConfigFault]]:
    """Build the dataclass `kind` from `data`. Returns it, or None, and the faults."""
    types_by_name = get_type_hints(kind)
    known = [f.name for f in fields(kind) if f.init]  # pyright: ignore[reportArgumentType]
    values: dict[str, Any] = {}
    faults: list[ConfigFault] = []
    for key, value in data.items():
        at = f"{path}.{key}" if path else key
        if key not in known:
            faults.append(ConfigFault(at, f"unknown key; {nearest(key, known)}"))
            continue
        values[key], below = _value(types_by_name[key], value, at)
        faults += below
    if faults:
        return None, faults
    try:
        return kind(**values), []
    except RamifyError as error:
        return None, [ConfigFault(path, str(error))]


def value_faults(kind: Any, value: Any, *, path: str) -> list[ConfigFault]:
    """Faults of one value, checked as `decode` checks a field of this type."""
    return _value(kind, value, path)[1]


def _value(kind: Any, value: Any, path: str) -> tuple[Any, list[ConfigFault]]:
    """Decode the value of one field."""
    if isinstance(value, Mapping):
        kind = _table_of(kind)
    of = _mapped_dataclass(kind)
    if is_dataclass(kind) and isinstance(value, Mapping):
        return decode(kind, value, path=path)  # pyright: ignore[reportArgumentType]
    if of is not None and isinstance(value, Mapping):
        return _table(of, value, path)
    if is_dataclass(kind) or of is not None:
        return None, [ConfigFault(path, f"got {value!r}, but it is a table of keys")]
    words = _words(kind)
    if value == CLEARED and NoneType in get_args(kind) and CLEARED not in words:
        return None, []
    try:
        return msgspec.convert(value, kind, strict=True), []
    except msgspec.ValidationError as error:
        if words and isinstance(value, str):
            return None, [ConfigFault(path, f"got {value!r}; allowed are {', '.join(map(repr, words))}")]
        return None, [ConfigFault(path, f"got {value!r}: {error}")]


def _table(kind: Any, data: Mapping[str, Any], path: str) -> tuple[dict[str, Any], list[ConfigFault]]:
    """Decode a table with free keys whose values are dataclasses."""
    values: dict[str, Any] = {}
    faults: list[ConfigFault] = []
    for key, value in data.items():
        values[key], below = _value(kind, value, f"{path}.{key}")
        faults += below
    return values, faults


def _table_of(kind: Any) -> Any:
    """The dataclass of an optional field; any other kind unchanged."""
    dataclasses = [part for part in get_args(kind) if is_dataclass(part)]
    is_optional = get_origin(kind) in (Union, UnionType) and len(dataclasses) == 1
    return dataclasses[0] if is_optional else kind


def _mapped_dataclass(kind: Any) -> Any:
    """The dataclass X of a field `Mapping[str, X]`; None for other fields."""
    args = get_args(kind)
    return args[1] if get_origin(kind) is not None and len(args) == 2 and is_dataclass(args[1]) else None


def _words(kind: Any) -> tuple[str, ...]:
    """The words that a field of literals accepts."""
    if get_origin(kind) is Literal:
        return tuple(word for word in get_args(kind) if isinstance(word, str))
    if get_origin(kind) in (Union, UnionType):
        return tuple(word for part in get_args(kind) for word in _words(part))
    return ()
