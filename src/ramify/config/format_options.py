"""Format options: checks `format` and `format_options` before the format is made.

A format class names the dataclass of its options as `Config`; a format that is a dataclass holds its options itself.
Field metadata says what an option names: `{"names": "step_parser"}` a plug-in of that kind, `{"names": "file"}` a file.
Any other format takes the keywords of its constructor, which are checked when it is made.
"""

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, Final

from ramify import plugins
from ramify.config.decode import CLEARED, ConfigFault, decode
from ramify.core.errors import ConfigError

NAMES: Final = "names"
FILE: Final = "file"


def options_class(format: Any) -> type[Any] | None:
    """The dataclass of a format's options; None = the format declares none."""
    kind = inspect.getattr_static(format, "Config", format)
    return kind if inspect.isclass(kind) and is_dataclass(kind) else None


def plugin_options(kind: type[Any]) -> dict[str, plugins.Kind]:
    """Option -> the kind of plug-in that it names."""
    return {option: known for option, named in _naming(kind) for known in plugins.KINDS if known == named}


def format_faults(format: str, options: Mapping[str, Any]) -> list[ConfigFault]:
    """Faults of the format, its options and the plug-ins they name."""
    try:
        kind = options_class(plugins.find("format", format))
    except ConfigError as error:
        return [ConfigFault("format", str(error))]
    if kind is None:
        return []
    faults = decode(kind, options, path="format_options")[1]
    for option, named in plugin_options(kind).items():
        if isinstance(name := options.get(option), str) and name != CLEARED:
            try:
                plugins.find(named, name)
            except ConfigError as error:
                faults.append(ConfigFault(f"format_options.{option}", str(error)))
    return faults


def format_actions(format: object) -> Mapping[str, Mapping[str, str]]:
    """The actions of every run in this format: the class attribute `actions` of the format."""
    actions = inspect.getattr_static(_found(format), "actions", None)
    return actions if isinstance(actions, Mapping) else {}


def anchored_format_options(format: str | None, options: Mapping[str, Any]) -> Mapping[str, Any]:
    """The options with absolute paths for all files they name."""
    kind = options_class(_found(format))
    anchored = dict(options)
    for option, named in () if kind is None else _naming(kind):
        if isinstance(name := options.get(option), str) and name:
            anchored[option] = str(Path(name).resolve()) if named == FILE else plugins.anchored(name)
    return anchored


def _found(format: object) -> Any:
    """The format that is named; None if there is no name or it cannot be found, which its own check reports."""
    try:
        return plugins.find("format", format) if isinstance(format, str) else None
    except ConfigError:
        return None


def _naming(kind: type[Any]) -> Iterator[tuple[str, str]]:
    """Each option that names something, and what it names."""
    return ((field.name, field.metadata[NAMES]) for field in fields(kind) if NAMES in field.metadata)
