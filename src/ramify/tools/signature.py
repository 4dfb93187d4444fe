"""Signature: the parameters of a typed function as a JSON schema, and a call's arguments as keyword arguments.

The schema comes from the type hints, its descriptions from the docstring (Google's `Args:`, `:param name:`, or lines
`name: what it is`). A hint that JSON has no values for raises a `ConfigError` that names the parameter.
"""

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from enum import Enum
from math import isfinite
from types import NoneType, SimpleNamespace, UnionType
from typing import (
    Annotated,
    Any,
    Final,
    Literal,
    NewType,
    NotRequired,
    Required,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

import msgspec

from ramify.core.errors import ConfigError
from ramify.tools.arguments import read_arguments

PLAIN: Final[Mapping[Any, str]] = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    NoneType: "null",
    None: "null",
    list: "array",
    tuple: "array",
    dict: "object",
}
LISTS: Final = (list, tuple, Sequence)
TABLES: Final = (dict, Mapping)
ALLOWED: Final = (
    "str, int, float, bool, None, Literal, Optional and unions, list[X], dict[str, X], Enum, dataclass, TypedDict, Any"
)
NAMED: Final = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)

_SECTION = re.compile(r"(Args|Arguments|Parameters|Params|Keyword Args|Keyword Arguments):\s*")
_OTHER_SECTION = re.compile(r"(Returns?|Raises|Yields?|Examples?|Notes?|References?|Warnings?|See Also|Todo):\s*")
_ENTRY = re.compile(r"(?::param (?:[^:]+ )?)?\*{0,2}(\w+)(?: *\([^)]*\))?: *(\S.*)?")


@dataclass(frozen=True, slots=True)
class Signature:
    """The parameters of one function."""

    description: str
    parameters: Mapping[str, Any]
    """The JSON schema of its arguments."""
    hints: Mapping[str, Any]
    """Parameter -> the type its value is converted to."""

    @classmethod
    def of(cls, function: Callable[..., Any], *, name: str) -> "Signature":
        """The signature of `function`. Raises `ConfigError` for a parameter without a hint, or with a hint that JSON
        has no values for."""
        hints = _hints(_without_result(function), f"tool {name!r}")
        named = inspect.signature(function).parameters
        description, told = _docstring(inspect.getdoc(function) or "", named)
        properties: dict[str, Any] = {}
        for parameter in named.values():
            where = f"tool {name!r}: parameter {parameter.name!r}"
            if parameter.kind not in NAMED:
                raise ConfigError(f"{where} has no name that a model could give: write it without *, ** and /")
            if parameter.name not in hints:
                raise ConfigError(f"{where} has no type hint; allowed are {ALLOWED}")
            hint = hints[parameter.name]
            properties[parameter.name] = _with_words(_schema(hint, where), told.get(parameter.name), parameter.default)
            _refuse_unmade(hint, where)
        required = [p.name for p in named.values() if p.default is p.empty]
        return cls(
            description=description,
            parameters=_object(properties, required),
            hints={p: hints[p] for p in named},
        )

    def read(self, arguments: str) -> dict[str, Any]:
        """The keyword arguments in a call's text. Raises `ValueError` with a message for the model if they do not
        fit."""
        given = read_arguments(arguments, self.parameters)
        made: dict[str, Any] = {}
        for name, value in given.items():
            try:
                made[name] = msgspec.convert(value, self.hints[name])
            except msgspec.ValidationError as error:
                raise ValueError(f"the arguments do not fit: {name}: {error}") from error
        return made


def _without_result(function: Callable[..., Any]) -> Any:
    """The hints of a function's parameters. The hint of its result is left out: it may use names that only type
    checkers import."""
    hints: Mapping[str, Any] = getattr(function, "__annotations__", {})
    names = getattr(inspect.unwrap(function), "__globals__", {})
    return SimpleNamespace(__annotations__={n: h for n, h in hints.items() if n != "return"}, __globals__=names)


def _hints(hinted: Any, where: str) -> dict[str, Any]:
    try:
        return get_type_hints(hinted, include_extras=True)
    except Exception as error:  # boundary to a user's annotations: reading them runs them
        raise ConfigError(f"{where}: its type hints cannot be read: {error}") from error


def _with_words(schema: dict[str, Any], words: str | None, default: Any) -> dict[str, Any]:
    if words:
        schema = {**schema, "description": words}
    if default is not inspect.Parameter.empty:
        plain = default.value if isinstance(default, Enum) else default
        if plain is None or isinstance(plain, str | int | bool) or (isinstance(plain, float) and isfinite(plain)):
            schema = {**schema, "default": plain}
    return schema


def _refuse_unmade(hint: Any, where: str) -> None:
    """Refuse an ambiguous hint: one that does not tell the type to convert a value to, such as a union of two
    dataclasses."""
    try:
        msgspec.json.Decoder(hint)
    except TypeError as error:
        raise ConfigError(f"{where}: {error}") from error


def _schema(hint: Any, where: str, inside: tuple[Any, ...] = ()) -> dict[str, Any]:
    """The JSON schema of a hint. Raises `ConfigError`."""
    if hint is Any:
        return {}
    if _is_plain(hint):
        return {"type": PLAIN[hint]}
    bare = hint if get_args(hint) else get_origin(hint) or hint
    if bare in LISTS or bare in TABLES:
        return {"type": "array" if bare in LISTS else "object"}
    if get_origin(hint) is not None:
        return _composed(hint, where, inside)
    if isinstance(hint, NewType):
        return _schema(hint.__supertype__, where, inside)
    if inspect.isclass(hint) and issubclass(hint, Enum):
        return _choice([each.value for each in hint], where)
    if hint in inside:
        raise ConfigError(f"{where} has a type that holds itself, {hint.__name__}; write it without")
    if is_typeddict(hint) or (inspect.isclass(hint) and is_dataclass(hint)):
        return _table(hint, where, (*inside, hint))
    raise _no_schema(hint, where)


def _composed(hint: Any, where: str, inside: tuple[Any, ...]) -> dict[str, Any]:
    """The schema of a hint with brackets or bars."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        words = [each for each in args[1:] if isinstance(each, str)]
        return _schema(args[0], where, inside) | ({"description": words[0]} if words else {})
    if origin in (Required, NotRequired):
        return _schema(args[0], where, inside)
    if origin is Literal:
        return _choice(args, where)
    if origin in (Union, UnionType):
        return {"anyOf": [_schema(each, where, inside) for each in args]}
    if origin in LISTS and (origin is not tuple or args[1:] == (Ellipsis,)):
        return {"type": "array", "items": _schema(args[0], where, inside)}
    if origin in TABLES and args[0] is str:
        return {"type": "object", "additionalProperties": _schema(args[1], where, inside)}
    raise _no_schema(hint, where)


def _no_schema(hint: Any, where: str) -> ConfigError:
    return ConfigError(f"{where} has the type {hint!r}, which no JSON value stands for; allowed are {ALLOWED}")


def _is_plain(hint: Any) -> bool:
    try:
        return hint in PLAIN
    except TypeError:  # a Literal may hold unhashable values
        return False


def _table(kind: Any, where: str, inside: tuple[Any, ...]) -> dict[str, Any]:
    """The schema of a dataclass or TypedDict."""
    hints = _hints(kind, where)
    if is_typeddict(kind):
        required = [name for name in hints if name in kind.__required_keys__]
    else:
        required = [field.name for field in fields(kind) if _is_needed(field)]
        hints = {field.name: hints[field.name] for field in fields(kind) if field.init}
    return _object({name: _schema(hint, f"{where}.{name}", inside) for name, hint in hints.items()}, required)


def _is_needed(field: "Field[Any]") -> bool:
    return field.init and field.default is MISSING and field.default_factory is MISSING


def _object(properties: Mapping[str, Any], required: Sequence[str]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(required),
        "additionalProperties": False,
    }


def _choice(values: Sequence[Any], where: str) -> dict[str, Any]:
    kinds = list(dict.fromkeys(PLAIN.get(type(value)) for value in values))
    if not kinds or not set(kinds) <= {"string", "integer", "boolean", "null"}:
        raise ConfigError(
            f"{where} chooses among {list(values)!r}; allowed are texts, whole numbers, true, false, None"
        )
    return {"type": kinds[0] if len(kinds) == 1 else kinds, "enum": list(values)}


def _docstring(text: str, names: Mapping[str, Any]) -> tuple[str, dict[str, str]]:
    """Split a docstring into the function's description and the descriptions of its parameters."""
    head: list[str] = []
    told: dict[str, list[str]] = {}
    current: list[str] | None = None
    depth = 0
    is_over = False
    for line in text.splitlines():
        said, indent = line.strip(), len(line) - len(line.lstrip())
        entry = _ENTRY.fullmatch(said)
        if _SECTION.fullmatch(said) or _OTHER_SECTION.fullmatch(said):
            current, is_over = None, True
        elif entry is not None and entry[1] in names:
            current = told.setdefault(entry[1], [entry[2]] if entry[2] else [])
            depth, is_over = indent, True
        elif current is not None and said and indent > depth:
            current.append(said)
        elif said.startswith(":"):
            current, is_over = None, True
        elif not is_over:
            head.append(line)
        elif not said or indent <= depth:
            current = None
    return "\n".join(head).strip(), {name: " ".join(lines) for name, lines in told.items()}
