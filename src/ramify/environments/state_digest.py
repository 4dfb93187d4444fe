"""State digest: a hash of what Python objects hold.

Two objects have the same digest if they hold the same, whether one was copied or made again: identities, addresses and
the order of sets stay out. An object counts as what `pickle` would keep of it; functions and classes count as their
names.
"""

import hashlib
from collections.abc import Callable, Mapping
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, Final

NAMED: Final = (type, FunctionType, BuiltinFunctionType)
CLOSED: Final = b")"
"""Ends what a container holds, so that nesting counts."""


def state_digest(*held: Any) -> str | None:
    """sha256 of `held`; None = something in it cannot be read, such as a lock or an open file. Mutates nothing."""
    hashed = hashlib.sha256()
    try:
        for value in held:
            _feed(hashed.update, value, ())
    except Exception:  # noqa: BLE001 - boundary to foreign code: what cannot be read has no digest
        return None
    return hashed.hexdigest()


def _feed(take: Callable[[bytes], object], value: Any, inside: tuple[int, ...]) -> None:
    """Hand the content of `value` to `take`. `inside`: ids of the objects that hold it."""
    if value is None or isinstance(value, bool | int | float | complex | str | bytes):
        return _word(take, f"{type(value).__qualname__} {value!r}")
    if isinstance(value, NAMED):
        return _word(take, f"named {value.__module__}.{value.__qualname__}")
    if isinstance(value, ModuleType):
        return _word(take, f"module {value.__name__}")
    if id(value) in inside:
        return _word(take, f"held {len(inside) - inside.index(id(value))} levels up")
    inside = (*inside, id(value))
    _word(take, f"{type(value).__module__}.{type(value).__qualname__}(")
    for part in _parts(value, inside):
        _feed(take, part, inside)
    take(CLOSED)
    return None


def _parts(value: Any, inside: tuple[int, ...]) -> list[Any]:
    """What an object holds, in an order that does not depend on how it was made."""
    if isinstance(value, set | frozenset):
        return sorted(_digest(part, inside) for part in value)
    if isinstance(value, Mapping) and type(value) is dict:
        return [part for item in value.items() for part in item]
    if type(value) in (list, tuple):
        return list(value)
    if isinstance(value, MethodType):
        return [value.__func__.__qualname__, value.__self__]
    reduced = value.__reduce_ex__(4)
    if isinstance(reduced, str):
        return [reduced]
    made, arguments, *more = reduced
    state, items, pairs = (*more, None, None, None)[:3]
    return [made, list(arguments), state, list(items or ()), [list(pair) for pair in pairs or ()]]


def _digest(value: Any, inside: tuple[int, ...]) -> bytes:
    hashed = hashlib.sha256()
    _feed(hashed.update, value, inside)
    return hashed.digest()


def _word(take: Callable[[bytes], object], word: str) -> None:
    told = word.encode("utf-8", "surrogatepass")
    take(b"%d " % len(told) + told)
