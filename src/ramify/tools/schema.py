"""Schema: whether the arguments of a call fit the JSON schema of its tool; in words for the model, where they do not.

A checker of its own, so that tools need no further package. It knows `type enum const properties required
additionalProperties items anyOf oneOf allOf $ref` and the bounds of numbers, texts and arrays; what else a schema says
is left to the tool itself. So it is never stricter than the schema: what fits is never refused.
"""

import json
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ramify.core.errors import nearest

MAX_FAULTS: Final = 4
"""Told of one call; whoever mends these meets the others."""
MAX_SHOWN_CHARS: Final = 80
MAX_DEPTH: Final = 64
"""Of schemas inside schemas: one that refers to itself without end says nothing more."""

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


def misfit(arguments: Mapping[str, Any], schema: Schema) -> str | None:
    """What is wrong with each parameter: what came and what is allowed. None = the arguments fit."""
    found = list(_Check(schema).faults(arguments, schema, "", 0))
    if not found:
        return None
    more = f"; and {len(found) - MAX_FAULTS} more" if len(found) > MAX_FAULTS else ""
    return f"the arguments do not fit: {'; '.join(found[:MAX_FAULTS])}{more}"


def shown(value: Any) -> str:
    """A value as JSON, cut where it is long."""
    try:
        text = json.dumps(value, ensure_ascii=False, default=str)
    except RecursionError:
        return "…"
    return text if len(text) <= MAX_SHOWN_CHARS else f"{text[: MAX_SHOWN_CHARS - 1]}…"


@dataclass(frozen=True, slots=True)
class _Check:
    """One check; `root` is where `$ref` looks."""

    root: Schema

    def faults(self, value: Any, schema: Any, at: str, depth: int) -> Iterator[str]:
        """What is wrong with `value`, which stands at `at`."""
        schema = self._resolved(schema)
        if schema is False:
            yield _said(at, value, "it is not allowed")
        if not isinstance(schema, Mapping) or depth > MAX_DEPTH:
            return
        if wrong := _wrong(value, schema):
            yield _said(at, value, wrong)
            return
        for each in listed_in(schema.get("allOf")):
            yield from self.faults(value, each, at, depth + 1)
        for key in ("anyOf", "oneOf"):
            ways = listed_in(schema.get(key))
            if ways and not any(self._fits(value, way, depth) for way in ways):
                yield from self._none_of(value, ways, at, depth)
        if isinstance(value, Mapping):
            yield from self._properties(value, schema, at, depth)
        elif isinstance(value, list):
            for number, item in enumerate(value):
                yield from self.faults(item, schema.get("items"), f"{at}[{number}]", depth + 1)

    def _fits(self, value: Any, schema: Any, depth: int) -> bool:
        return next(self.faults(value, schema, "", depth + 1), None) is None

    def _none_of(self, value: Any, ways: Sequence[Any], at: str, depth: int) -> Iterator[str]:
        """A value that fits no way: if only one is of its type, what is wrong with that; else all that are allowed."""
        resolved = [self._resolved(way) for way in ways]
        near = [way for way in resolved if isinstance(way, Mapping) and not _wrong(value, way)]
        if len(near) == 1:
            yield from self.faults(value, near[0], at, depth + 1)
        else:
            yield _said(at, value, f"it must be {' or '.join(dict.fromkeys(map(_words, resolved)))}")

    def _properties(self, value: Mapping[str, Any], schema: Mapping[str, Any], at: str, depth: int) -> Iterator[str]:
        known = schema.get("properties")
        known = known if isinstance(known, Mapping) else {}
        for name in listed_in(schema.get("required")):
            if isinstance(name, str) and name not in value:
                yield f"{_below(at, name)} is missing: it must be {_words(self._resolved(known.get(name)))}"
        for name, item in value.items():
            if name in known:
                yield from self.faults(item, known[name], _below(at, name), depth + 1)
            elif "patternProperties" not in schema:
                others = schema.get("additionalProperties", True)
                if others is False:
                    yield f"there is no {_below(at, name)}; {nearest(name, known)}"
                else:
                    yield from self.faults(item, others, _below(at, name), depth + 1)

    def _resolved(self, schema: Any) -> Any:
        """The schema that a local `$ref` names; one that leads nowhere allows anything."""
        for _ in range(MAX_DEPTH):
            if not isinstance(schema, Mapping) or not isinstance(schema.get("$ref"), str):
                return schema
            schema = _at(self.root, schema["$ref"])
        return True


def _at(root: Any, pointer: str) -> Any:
    """What a JSON pointer `#/$defs/Name` leads to."""
    if not pointer.startswith("#"):
        return True
    for step in pointer.removeprefix("#").split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        if not isinstance(root, Mapping) or name not in root:
            return True
        root = root[name]
    return root


def _wrong(value: Any, schema: Mapping[str, Any]) -> str | None:
    """What is wrong with a value as a whole, its parts left aside; None = nothing."""
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
    """Known types a schema names; none = it allows any."""
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
    """What a schema allows."""
    if not isinstance(schema, Mapping):
        return "given"
    if isinstance(allowed := schema.get("enum"), list | tuple):
        return f"one of {', '.join(map(shown, allowed))}"
    if "const" in schema:
        return shown(schema["const"])
    ways = listed_in(schema.get("anyOf")) or listed_in(schema.get("oneOf"))
    words = [WORDS[name] for name in _types(schema)] or [_words(way) for way in ways]
    return " or ".join(dict.fromkeys(words)) or "given"


def listed_in(value: Any) -> Sequence[Any]:
    """A list of a schema; nothing where there is none."""
    return value if isinstance(value, list | tuple) else ()


def _said(at: str, value: Any, wrong: str) -> str:
    return f"{at or 'they'} = {shown(value)}: {wrong}"


def _below(at: str, name: str) -> str:
    return f"{at}.{name}" if at else name


def _is_same(one: Any, other: Any) -> bool:
    """Equality of JSON, to which true is not 1."""
    return isinstance(one, bool) == isinstance(other, bool) and one == other
