"""Schema: check the arguments of a call against the JSON schema of its tool, with messages for the model.

Written here so that tools need no other package. It knows `type enum const properties required additionalProperties
items prefixItems anyOf oneOf allOf $ref` and the bounds of numbers, texts and arrays. Other keywords, and checks that
would take too long, are left to the tool. It is never stricter than the schema: arguments that fit are never refused.
"""

import json
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from ramify.core.errors import nearest
from ramify.formats.calls import MAX_DEPTH, listed_in, resolved

MAX_FAULTS: Final = 4
"""Most faults reported for one call; the next call gets the others."""
MAX_FAULT_CHARS: Final = 400
"""Maximum length of one fault: a name, or the list of allowed values, may be of any length."""
MAX_SHOWN_CHARS: Final = 80
MAX_CHOICES: Final = 32
MAX_STEPS: Final = 20_000
"""Most comparisons of a value with a schema in one check: a tenth of a second. Anything beyond, such as a schema that
refers to itself twice, is left to the tool."""

WORDS: Final[Mapping[str, str]] = {
    "string": "a text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "array": "an array",
    "object": "an object",
    "null": "null",
}

BOUNDS: Final[Mapping[str, tuple[Callable[[Any, Any], bool], str]]] = {
    "minimum": (operator.ge, "at least"),
    "maximum": (operator.le, "at most"),
    "exclusiveMinimum": (operator.gt, "above"),
    "exclusiveMaximum": (operator.lt, "below"),
}

Schema = Mapping[str, Any] | bool
Fault = Callable[[], str]
"""What is wrong with one value. The text is made only when it is shown, because there may be very many."""


def misfit(arguments: Mapping[str, Any], schema: Schema) -> str | None:
    """What is wrong with each parameter: the value given and what is allowed. None = the arguments fit."""
    found = list(_Check(schema).faults(arguments, schema, "", 0))
    if not found:
        return None
    more = f"; and {len(found) - MAX_FAULTS} more" if len(found) > MAX_FAULTS else ""
    told = (_cut(fault(), MAX_FAULT_CHARS) for fault in found[:MAX_FAULTS])
    return f"the arguments do not fit: {'; '.join(told)}{more}"


def shown(value: Any) -> str:
    """A value as JSON, cut if it is long."""
    try:
        text = json.dumps(value, ensure_ascii=False, default=str)
    except RecursionError:
        return "…"
    return _cut(text, MAX_SHOWN_CHARS)


@dataclass(slots=True)
class _Check:
    """One check; `$ref` is resolved in `root`."""

    root: Schema
    num_steps: int = 0

    def faults(self, value: Any, schema: Any, at: str, depth: int) -> Iterator[Fault]:
        """The faults of `value`, which is at path `at`."""
        self.num_steps += 1
        schema = resolved(schema, self.root)
        if schema is False:
            yield partial(_said, at, value, "it is not allowed")
        if not isinstance(schema, Mapping) or depth > MAX_DEPTH or self.num_steps > MAX_STEPS:
            return
        if wrong := _wrong(value, schema):
            yield partial(_said, at, value, wrong)
            return
        for each in listed_in(schema.get("allOf")):
            yield from self.faults(value, each, at, depth + 1)
        for key in ("anyOf", "oneOf"):
            yield from self._either(value, listed_in(schema.get(key)), at, depth)
        if isinstance(value, Mapping):
            yield from self._properties(value, schema, at, depth)
        elif isinstance(value, list):
            first = listed_in(schema.get("prefixItems"))
            for number, item in enumerate(value):
                way = first[number] if number < len(first) else schema.get("items")
                yield from self.faults(item, way, f"{at}[{number}]", depth + 1)

    def _either(self, value: Any, ways: Sequence[Any], at: str, depth: int) -> Iterator[Fault]:
        """The faults of a value that fits none of `ways`: of the only one with its type, else the list of what is
        allowed."""
        near: list[list[Fault]] = []
        allowed = [resolved(way, self.root) for way in ways]
        for way in allowed:
            found = list(self.faults(value, way, at, depth + 1))
            if not found:
                return
            if isinstance(way, Mapping) and not _wrong(value, way):
                near.append(found)
        if len(near) == 1:
            yield from near[0]
        elif allowed:
            yield partial(_none_of, at, value, allowed)

    def _properties(self, value: Mapping[str, Any], schema: Mapping[str, Any], at: str, depth: int) -> Iterator[Fault]:
        known = schema.get("properties")
        known = known if isinstance(known, Mapping) else {}
        for name in listed_in(schema.get("required")):
            if isinstance(name, str) and name not in value:
                yield partial(_missing, _below(at, name), resolved(known.get(name), self.root))
        for name, item in value.items():
            if name in known:
                yield from self.faults(item, known[name], _below(at, name), depth + 1)
            elif "patternProperties" not in schema:
                others = schema.get("additionalProperties", True)
                if others is False:
                    yield partial(_unknown, at, name, known)
                else:
                    yield from self.faults(item, others, _below(at, name), depth + 1)


def _wrong(value: Any, schema: Mapping[str, Any]) -> str | None:
    """What is wrong with a value as a whole, without its parts; None = nothing."""
    types = _types(schema)
    if types and not any(_is_of(value, name) for name in types):
        return f"it must be {_words(schema)}"
    if isinstance(allowed := schema.get("enum"), list | tuple) and not any(_is_same(value, each) for each in allowed):
        return f"it must be {_words(schema)}"
    if "const" in schema and not _is_same(value, schema["const"]):
        return f"it must be {shown(schema['const'])}"
    return _out_of_bounds(value, schema)


def _out_of_bounds(value: Any, schema: Mapping[str, Any]) -> str | None:
    if isinstance(value, str):
        return _out_of(len(value), schema.get("minLength"), schema.get("maxLength"), "characters")
    if isinstance(value, list):
        return _out_of(len(value), schema.get("minItems"), schema.get("maxItems"), "items")
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    for key, (is_kept, words) in BOUNDS.items():
        bound = schema.get(key)
        if isinstance(bound, int | float) and not isinstance(bound, bool) and not is_kept(value, bound):
            return f"it must be {words} {shown(bound)}"
    return None


def _out_of(size: int, least: Any, most: Any, unit: str) -> str | None:
    if isinstance(least, int) and size < least:
        return f"it must have at least {least} {unit}, not {size}"
    if isinstance(most, int) and size > most:
        return f"it must have at most {most} {unit}, not {size}"
    return None


def _types(schema: Mapping[str, Any]) -> list[str]:
    """Known types that a schema names; empty = any type."""
    named = schema.get("type")
    names = [named] if isinstance(named, str) else listed_in(named)
    return [str(name) for name in names] if all(isinstance(n, str) and n in WORDS for n in names) else []


def _is_of(value: Any, name: str) -> bool:
    match name:
        case "string":
            return isinstance(value, str)
        case "boolean":
            return isinstance(value, bool)
        case "integer":
            is_whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
            return is_whole and not isinstance(value, bool)
        case "number":
            return isinstance(value, int | float) and not isinstance(value, bool)
        case "array":
            return isinstance(value, list)
        case "object":
            return isinstance(value, Mapping)
        case _:
            return value is None


def _words(schema: Any) -> str:
    """What a schema allows, in words."""
    if not isinstance(schema, Mapping):
        return "given"
    if isinstance(allowed := schema.get("enum"), list | tuple):
        more = [f"… and {len(allowed) - MAX_CHOICES} more"] if len(allowed) > MAX_CHOICES else []
        return f"one of {', '.join([*map(shown, allowed[:MAX_CHOICES]), *more])}"
    if "const" in schema:
        return shown(schema["const"])
    ways = listed_in(schema.get("anyOf")) or listed_in(schema.get("oneOf"))
    words = [WORDS[name] for name in _types(schema)] or [_words(way) for way in ways[:MAX_CHOICES]]
    return " or ".join(dict.fromkeys(words)) or "given"


def _said(at: str, value: Any, wrong: str) -> str:
    return f"{at or 'they'} = {shown(value)}: {wrong}"


def _none_of(at: str, value: Any, ways: Sequence[Any]) -> str:
    return _said(at, value, f"it must be {' or '.join(dict.fromkeys(map(_words, ways[:MAX_CHOICES])))}")


def _missing(at: str, schema: Any) -> str:
    return f"{at} is missing: it must be {_words(schema)}"


def _unknown(at: str, name: str, known: Mapping[str, Any]) -> str:
    return f"there is no {_below(at, name)}; {nearest(name, known)}"


def _below(at: str, name: str) -> str:
    name = _cut(name, MAX_SHOWN_CHARS)
    return f"{at}.{name}" if at else name


def _cut(text: str, max_chars: int) -> str:
    return text if len(text) <= max_chars else f"{text[: max_chars - 1]}…"


def _is_same(one: Any, other: Any) -> bool:
    """Equality in JSON, where true is not 1."""
    return isinstance(one, bool) == isinstance(other, bool) and one == other
