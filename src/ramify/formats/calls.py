"""Calls: the two ways in which models write a tool call as text, and what the tool receives.

`hermes` is `<tool_call>{"name": …, "arguments": {…}}</tool_call>` (Hermes, Qwen2.5, Qwen3). `xml` is
`<tool_call><function=NAME><parameter=KEY>value</parameter>…</function></tool_call>` (Qwen3-Coder); the tool's schema
decides the types of the values. A call that cannot be read without a guess becomes an `InvalidAction` that says why.
Nothing is dropped silently.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, Literal, cast

from ramify.core.format import InvalidAction, ToolAction

Syntax = Literal["hermes", "xml"]

CALL: Final = "<tool_call>"
CALL_END: Final = "</tool_call>"
FUNCTION: Final = "<function="
"""The `xml` syntax shows this in a template that teaches it."""

Schemas = Mapping[str, Mapping[str, Any]]
"""Tool name -> the JSON schema of its arguments."""

MAX_DEPTH: Final = 64
"""Deepest chain of references from schema to schema. A schema that refers to itself without end allows anything."""

MAX_NAMES_SHOWN: Final = 8

_KINDS: Final[Mapping[type[Any], str]] = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    type(None): "null",
}
_FUNCTION = re.compile(r"<function=([^>\n]*)>(.*)</function>", re.DOTALL)
_PARAMETER = re.compile(r"\s*<parameter=([^>\n]*)>(.*?)</parameter>\s*", re.DOTALL)
_SPELLINGS: Final = {"True": True, "False": False, "None": None}
"""As the templates of this syntax write them."""
_SURROGATE = re.compile("[\ud800-\udfff]")


def read_call(text: str, syntax: Syntax, schemas: Schemas) -> ToolAction | InvalidAction:
    """The one call in `text`, which ends a turn. Text before the call is the model's own words."""
    _, start, rest = text.partition(CALL)
    content, _, behind = rest.partition(CALL_END)
    if not start:
        return InvalidAction(f"{CALL_END} closes nothing; write {CALL}, then the call, then {CALL_END}")
    if CALL_END in behind:
        return InvalidAction("several calls in one turn: none was made. Make one, wait for its result, make the next")
    return _action(lambda: _READERS[syntax](content.strip(), schemas), schemas)


def read_function(name: str, arguments: str, schemas: Schemas) -> ToolAction | InvalidAction:
    """A call given as a name and the JSON text of its arguments (OpenAI's). An empty text means no arguments."""
    return _action(lambda: _object(name, _json(arguments) if arguments.strip() else {}), schemas)


def _action(read: Callable[[], tuple[str, Mapping[str, Any]]], schemas: Schemas) -> ToolAction | InvalidAction:
    try:
        name, arguments = read()
        return ToolAction(name, _as_text(name, arguments, schemas))
    except (ValueError, RecursionError) as error:
        return InvalidAction(f"the tool call could not be read: {error or 'it is nested too deeply'}")


def _json(text: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=without_repeats, parse_constant=no_constant)
    except json.JSONDecodeError as error:
        raise ValueError(f"this is no JSON: {error}") from error


def _hermes(content: str, schemas: Schemas) -> tuple[str, Mapping[str, Any]]:
    call = _json(content)
    if not isinstance(call, dict) or "name" not in call:
        raise ValueError('it must be a JSON object {"name": ..., "arguments": {...}}')
    given: dict[str, Any] = {"arguments": {}, **call}
    return _object(given["name"], given["arguments"])


def _object(name: Any, arguments: Any) -> tuple[str, Mapping[str, Any]]:
    if not isinstance(name, str) or not name.strip():
        raise ValueError(f"name = {name!r} is no name of a tool")
    if not isinstance(arguments, dict):
        raise ValueError(f"arguments must be a JSON object, not {arguments!r:.80}")
    return name, cast("dict[str, Any]", arguments)


def _xml(content: str, schemas: Schemas) -> tuple[str, Mapping[str, Any]]:
    function = _FUNCTION.fullmatch(content)
    if function is None or not function[1].strip():
        raise ValueError("it must be <function=NAME>, its parameters, </function>")
    name, body = function[1].strip(), function[2]
    schema = schemas.get(name, {})
    pairs: list[tuple[str, Any]] = []
    at = 0
    while found := _PARAMETER.match(body, at):
        at = found.end()
        pairs.append((found[1].strip(), _typed(found[1].strip(), found[2], schema)))
    if body[at:].strip():
        raise ValueError(f"between parameters stands {body[at:].strip()!r:.80}; write <parameter=KEY>value</parameter>")
    return name, without_repeats(pairs)


_READERS: Final[Mapping[Syntax, Callable[[str, Schemas], tuple[str, Mapping[str, Any]]]]] = MappingProxyType(
    {"hermes": _hermes, "xml": _xml}
)


def _typed(key: str, value: str, schema: Mapping[str, Any]) -> Any:
    """A parameter's value, with the type from the tool's schema. Line breaks next to the tags belong to the tags."""
    value = value.removeprefix("\n").removesuffix("\n")
    known = _types(_properties(schema).get(key), schema)
    if "string" in known:
        return value
    if value.strip() in _SPELLINGS:
        return _SPELLINGS[value.strip()]
    try:
        return json.loads(value, object_pairs_hook=without_repeats, parse_constant=no_constant)
    except json.JSONDecodeError as error:
        raise ValueError(f"parameter {key} must be of type {' or '.join(known)}, not {value!r:.80}") from error


def _as_text(name: str, arguments: Mapping[str, Any], schemas: Schemas) -> str:
    """Arguments as our tools take them: the text itself for a tool that takes one text, otherwise a JSON object."""
    parameter = only_text(schemas[name]) if name in schemas else None
    if parameter is None:
        text = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
    elif list(arguments) == [parameter] and isinstance(arguments[parameter], str):
        text = arguments[parameter]
        if unwrapped(text, parameter) != text:  # The toolbox unwraps a text once, and must find this one inside.
            text = json.dumps(arguments, ensure_ascii=False)
    else:
        raise ValueError(f"{name} takes one argument, the text {parameter!r}, not {json.dumps(arguments)!s:.80}")
    if _SURROGATE.search(name + text):
        raise ValueError("it holds half of a surrogate pair, which is no character")
    return text if text.strip() else ""


def only_text(schema: Mapping[str, Any]) -> str | None:
    """The only parameter of a tool that takes one text; None = the tool takes something else."""
    properties = _properties(schema)
    if len(properties) != 1:
        return None
    ((name, value),) = properties.items()
    return name if set(_named(value, schema)) == {"string"} else None


def unwrapped(text: str, parameter: str) -> str:
    """The text itself, where a model wrote `{"query": "text"}` between the tags of a tool whose only parameter is the
    text `query`."""
    if not text.lstrip().startswith("{"):
        return text
    try:
        given = _table(_json(text))
    except (ValueError, RecursionError):
        return text
    inner = given[parameter] if list(given) == [parameter] else None
    return inner if isinstance(inner, str) and not _SURROGATE.search(inner) else text


def resolved(schema: Any, root: Any) -> Any:
    """The schema to which a `$ref` leads inside `root`. A reference that leads nowhere allows anything."""
    for _ in range(MAX_DEPTH):
        pointer = _table(schema).get("$ref")
        if not isinstance(pointer, str):
            return schema
        schema = _at(root, pointer)
    return True


def listed_in(value: Any) -> Sequence[Any]:
    """A list in a schema; empty if `value` is no list."""
    return cast("Sequence[Any]", value) if isinstance(value, list | tuple) else ()


def _at(root: Any, pointer: str) -> Any:
    """The value at a JSON pointer such as `#/$defs/Name`."""
    if pointer != "#" and not pointer.startswith("#/"):
        return True
    for step in pointer.removeprefix("#").split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        if name not in _table(root):
            return True
        root = _table(root)[name]
    return root


def _properties(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    return _table(schema.get("properties"))


def _table(value: Any) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def _types(schema: Any, root: Mapping[str, Any]) -> list[str]:
    """JSON types that a schema inside `root` allows. A schema that names none allows text."""
    return _named(schema, root) or ["string"]


def _named(schema: Any, root: Mapping[str, Any]) -> list[str]:
    """The types that a schema names: in its `type`, else in its alternatives, else in its enum values. Each schema is
    visited once, because some contain themselves."""
    names: list[str] = []
    ways: list[Any] = [schema]
    seen: set[int] = set()
    for way in ways:
        found = _table(resolved(way, root))
        if id(found) in seen:
            continue
        seen.add(id(found))
        own = found.get("type")
        named = [name for name in ([own] if isinstance(own, str) else listed_in(own)) if isinstance(name, str)]
        below = [each for key in ("anyOf", "oneOf", "allOf") for each in listed_in(found.get(key))]
        values = [_KINDS.get(value.__class__, "object") for value in listed_in(found.get("enum"))]
        names += named or ([] if below else values)
        ways += [] if named else below
    return names


def without_repeats(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Makes an object for `json.loads`. Raises a short `ValueError` if a name is given twice."""
    if len(found := dict(pairs)) < len(pairs):
        names = [f"{name!r:.80}" for name, _ in pairs[:MAX_NAMES_SHOWN]]
        raise ValueError(f"a name is given twice among {', '.join(names)}{'…' if len(pairs) > len(names) else ''}")
    return found


def no_constant(spelling: str) -> Any:
    """Raise `ValueError` when `json.loads` meets `NaN` or `Infinity`."""
    raise ValueError(f"{spelling} is no JSON")
