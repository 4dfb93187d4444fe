"""Strategy options: the options of a strategy read by its own `Config`, and the functions that they name.

Whatever a strategy wants of its options it says itself: a `Config` that reads another layout is an `OptionsReader`, and
a field that names a function says so by `metadata={"plugin": kind}` (`core/strategy.py`). No strategy is known by name.
"""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from ramify import plugins
from ramify.config.decode import Fault, decode
from ramify.core.errors import ConfigError
from ramify.core.strategy import OptionsReader

PATH = "strategy.options"


def read_options(strategy: Any, given: Mapping[str, Any]) -> tuple[Any | None, str | None, list[Fault]]:
    """The `Config` of `strategy` with these options, files that they name as absolute paths; how another layout of them
    was read; and the faults, with which there is no `Config`."""
    kind = plugins.config_class(strategy)
    reading = None
    try:
        if isinstance(kind, OptionsReader):
            given, reading = kind.read(given)
    except ConfigError as error:
        return None, None, [Fault(PATH, str(error))]
    names = {name: given[name] for name in _plugin_kinds(kind) if isinstance(given.get(name), str)}
    if faults := _unknown_functions(kind, names):
        return None, None, faults
    anchored = {name: plugins.anchored(value) for name, value in names.items()}
    options, faults = decode(kind, {**given, **anchored}, path=PATH)
    return options, reading, faults


def named_functions(options: Any) -> dict[str, Any]:
    """Keyword of the strategy's constructor -> the function that the field of this name in its `Config` names."""
    return {name: plugins.find(kind, getattr(options, name)) for name, kind in _plugin_kinds(type(options)).items()}


def _unknown_functions(kind: type[Any], names: Mapping[str, str]) -> list[Fault]:
    faults: list[Fault] = []
    for name, value in names.items():
        try:
            plugins.find(_plugin_kinds(kind)[name], value)
        except ConfigError as error:
            faults.append(Fault(f"{PATH}.{name}", str(error)))
    return faults


def _plugin_kinds(kind: type[Any]) -> dict[str, plugins.Kind]:
    """Field of a `Config` that names a function -> the kind of plug-in it is."""
    return {field.name: field.metadata["plugin"] for field in fields(kind) if "plugin" in field.metadata}
