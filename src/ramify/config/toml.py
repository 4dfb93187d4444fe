"""Toml: writes plain data as TOML text. The standard library reads TOML but does not write it.

A value of None is left out. None in a list and values of other types raise `ConfigError`. For everything else
`tomllib.loads(toml_text(data))` equals `data`.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from ramify.core.errors import ConfigError

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def toml_text(data: Mapping[str, Any]) -> str:
    """`data` as TOML: in each table the plain values come first, then its tables."""
    return "\n".join(_lines(data, ())) + "\n"


def _lines(table: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    plain = {key: value for key, value in table.items() if not isinstance(value, Mapping) and value is not None}
    tables = {key: value for key, value in table.items() if isinstance(value, Mapping)}
    if path and (plain or not tables):
        yield f"\n[{'.'.join(map(_key, path))}]"
    for key, value in plain.items():
        yield f"{_key(key)} = {_value(value)}"
    for key, value in tables.items():
        yield from _lines(value, (*path, key))


def _value(value: Any) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case str():
            return _string(value)
        case list() | tuple():
            return f"[{', '.join(map(_value, value))}]"
        case Mapping():
            return f"{{{', '.join(f'{_key(k)} = {_value(v)}' for k, v in value.items() if v is not None)}}}"
        case _:
            raise ConfigError(f"TOML cannot hold {value!r}; allowed are strings, numbers, booleans, lists and tables")


def _key(key: str) -> str:
    return key if _BARE_KEY.fullmatch(key) else _string(key)


def _string(text: str) -> str:
    """A basic string. JSON's escapes are valid in TOML, except one control character that JSON does not escape."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
