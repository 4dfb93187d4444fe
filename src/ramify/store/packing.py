"""Packing: converts values that JSON cannot hold to values that it can, and back. Lossless except for lone surrogates.

JSON encoders silently write NaN and infinities as `null` and fail on a lone surrogate. Here a number that is not finite
becomes a string, a lone surrogate becomes U+FFFD, and a value that cannot be kept raises `StoreError`.
"""

import base64
import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from ramify.core.errors import StoreError

Number = float | str
"""A float, or `"nan"`, `"inf"`, `"-inf"`."""

MAX_DEPTH = 64
"""Deepest nesting of free-form data. Deeper data is a cycle or an attack on the decoder's stack."""

_SURROGATE = re.compile("[\ud800-\udfff]")


def clean_text(text: str) -> str:
    """`text` with every lone surrogate replaced by U+FFFD. A subclass of `str` (such as numpy's) becomes a plain
    `str`."""
    if type(text) is str and text.isascii():
        return text
    return _SURROGATE.sub("\ufffd", "".join((text,)))


def pack_number(value: float) -> Number:
    number = float(value)
    return number if math.isfinite(number) else repr(number)


def pack_data(value: Any, *, depth: int = 0) -> Any:
    """Free-form data (columns, metadata, notes, messages) as JSON.

    It keeps None, bool, int, float, str, bytes, lists, tuples, mappings and numpy scalars (as Python scalars). A value
    that JSON has no form for becomes an object with one key that begins with `$`. A mapping that looks like such an
    object, or that has keys that are not strings, becomes a `$map` of pairs. Raises `StoreError` on anything else.
    """
    if depth > MAX_DEPTH:
        raise StoreError(f"data nested deeper than {MAX_DEPTH} levels cannot be recorded; flatten it")
    match value.item() if isinstance(value, np.generic) else value:
        case None | bool() as plain:
            return plain
        case str() as text:
            return clean_text(text)
        case int() as number:
            return int(number) if -(2**63) <= number < 2**64 else {"$int": hex(number)}
        case float() as number:
            return float(number) if math.isfinite(number) else {"$float": repr(float(number))}
        case bytes() as data:
            return {"$bytes": base64.b64encode(data).decode()}
        case list() as items:
            return [pack_data(item, depth=depth + 1) for item in items]
        case tuple() as items:
            return {"$tuple": [pack_data(item, depth=depth + 1) for item in items]}
        case Mapping() as mapping:
            return _pack_mapping(mapping, depth)
        case _:
            raise StoreError(
                f"a value of type {type(value).__name__} cannot be recorded; allowed are None, bool, int, float, str, "
                "bytes, list, tuple and mappings of them"
            )


def _pack_mapping(value: Mapping[Any, Any], depth: int) -> dict[str, Any]:
    has_names = all(isinstance(key, str) for key in value)
    if has_names and not (len(value) == 1 and next(iter(value)).startswith("$")):
        return {clean_text(key): pack_data(item, depth=depth + 1) for key, item in value.items()}
    return {"$map": [[pack_data(part, depth=depth + 1) for part in pair] for pair in value.items()]}


def unpack_data(value: Any) -> Any:
    """The inverse of `pack_data`."""
    match value:
        case list():
            return [unpack_data(item) for item in value]
        case {"$int": str(text)} if len(value) == 1:
            return int(text, 16)
        case {"$float": str(text)} if len(value) == 1:
            return float(text)
        case {"$bytes": str(text)} if len(value) == 1:
            return base64.b64decode(text)
        case {"$tuple": list(items)} if len(value) == 1:
            return tuple(unpack_data(item) for item in items)
        case {"$map": list(pairs)} if len(value) == 1:
            return {unpack_data(key): unpack_data(item) for key, item in pairs}
        case dict():
            return {key: unpack_data(item) for key, item in value.items()}
        case _:
            return value
