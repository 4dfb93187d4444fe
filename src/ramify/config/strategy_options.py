"""Strategy options: reads a strategy's options by its own `Config`, and finds the functions that they name.

A strategy declares everything about its options itself: a `Config` that reads another layout is an `OptionsReader`, and
a field that names a function has `metadata={"plugin": kind}` (`core/strategy.py`). No strategy is known here by name.
"""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar, cast, get_type_hints

from ramify import plugins
from ramify.config.decode import ConfigFault, decode
from ramify.core.errors import ConfigError
from ramify.core.strategy import OptionsReader
from ramify.edge.error_text import error_text

PATH = "strategy.options"
PUBLISHED = "published"
"""Field of a `Config`: the table of switches that only reproduce a published code."""

C = TypeVar("C")


def read_options(kind: type[C], given: Mapping[str, Any]) -> tuple[C | None, str | None, list[ConfigFault]]:
    """Read options into `kind`, the `Config` of a strategy. Returns it, how an older layout was read, and the faults.

    Files that options name become absolute paths. If there are faults, the `Config` is None.
    """
    reading, reader = None, cast(object, kind)
    try:
        if isinstance(reader, OptionsReader):
            given, reading = reader.read(given)
    except ConfigError as error:
        return None, None, [ConfigFault(PATH, str(error))]
    given, moved = _nested(kind, given)
    names = {name: given[name] for name in _plugin_kinds(kind) if isinstance(given.get(name), str)}
    if faults := _unknown_functions(kind, names):
        return None, None, faults
    anchored = {name: plugins.anchored(value) for name, value in names.items()}
    try:
        options, faults = decode(kind, {**given, **anchored}, path=PATH)
    except Exception as error:  # noqa: BLE001 - boundary to a user's `Config`, whatever it raises
        return None, None, [ConfigFault(PATH, f"{kind.__module__}.{kind.__qualname__}: {error_text(error)}")]
    nested = {f"{PATH}.{PUBLISHED}.{name}": f"{PATH}.{name}" for name in moved}
    return options, reading, [replace(fault, path=nested.get(fault.path, fault.path)) for fault in faults]


def named_functions(options: Any) -> dict[str, Any]:
    """Keyword of the strategy's constructor -> the function named by the field of the same name in its `Config`."""
    return {name: plugins.find(kind, getattr(options, name)) for name, kind in _plugin_kinds(type(options)).items()}


def _nested(kind: type[Any], given: Mapping[str, Any]) -> tuple[Mapping[str, Any], frozenset[str]]:
    """Move switches that older configurations give as fields of `kind` into its table `published`, where they win.
    Returns the options and the names of the moved switches."""
    of = get_type_hints(kind).get(PUBLISHED)
    table = given.get(PUBLISHED, {})
    if not is_dataclass(of) or not isinstance(table, Mapping):
        return given, frozenset()
    moved = {field.name: given[field.name] for field in fields(of) if field.name in given}
    kept = {name: value for name, value in given.items() if name not in moved}
    return ({**kept, PUBLISHED: {**table, **moved}} if moved else given), frozenset(moved)


def _unknown_functions(kind: type[Any], names: Mapping[str, str]) -> list[ConfigFault]:
    faults: list[ConfigFault] = []
    for name, value in names.items():
        try:
            plugins.find(_plugin_kinds(kind)[name], value)
        except ConfigError as error:
            faults.append(ConfigFault(f"{PATH}.{name}", str(error)))
    return faults


def _plugin_kinds(kind: type[Any]) -> dict[str, plugins.Kind]:
    """Field of a `Config` that names a function -> the kind of plug-in."""
    return {field.name: field.metadata["plugin"] for field in fields(kind) if "plugin" in field.metadata}
