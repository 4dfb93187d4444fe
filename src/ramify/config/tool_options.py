"""Tool options: checks an entry of `tools.use` before anything is made.

An entry names a class, a dataclass or a decorated function, whose keywords are the options, or a finished tool, which
takes none. Types are checked if the hints are plain data; a class checks everything else itself.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from types import NoneType
from typing import Any, Final, Literal, get_args, get_origin, get_type_hints

from ramify import plugins
from ramify.config.decode import ConfigFault, decode, value_faults
from ramify.config.run_config import ToolConfig
from ramify.core.errors import ConfigError
from ramify.tools.function import FunctionTool, tool

PLAIN: Final = (str, int, float, bool, NoneType, Any)


def found_tool(name: str, entry: ToolConfig) -> Any:
    """What an entry names; a plain function becomes a tool. Raises `ConfigError`."""
    found = plugins.find("tool", entry.kind or name)
    return tool(name=name)(found) if inspect.isfunction(found) else found


def option_faults(name: str, entry: ToolConfig) -> list[ConfigFault]:
    """Faults of the entry `tools.use.NAME`."""
    path, kind = f"tools.use.{name}", entry.kind or name
    try:
        found = found_tool(name, entry)
    except ConfigError as error:
        return [ConfigFault(f"{path}.kind", str(error))]
    if isinstance(found, FunctionTool):
        return keyword_faults(found.configured, entry.options, path=f"{path}.options")
    if inspect.isclass(found):
        return keyword_faults(found, entry.options, path=f"{path}.options")
    return [ConfigFault(f"{path}.options", f"{kind!r} is a tool already and takes none")] if entry.options else []


def keyword_faults(target: Callable[..., Any], options: Mapping[str, Any], *, path: str) -> list[ConfigFault]:
    """Options that `target` does not take, options of a wrong type, and missing ones. `name` is always given."""
    unknown = plugins.unknown_keywords(target, options)
    missing = plugins.missing_keywords(target, {*options, "name"})
    faults = [ConfigFault(f"{path}.{key}", message) for key, message in unknown.items()]
    faults += [ConfigFault(path, f"it needs {key!r}") for key in missing]
    if faults:
        return faults
    if inspect.isclass(target) and is_dataclass(target):
        return decode(target, options, path=path)[1]
    return plain_faults(target, options, path=path)


def plain_faults(target: Callable[..., Any], options: Mapping[str, Any], *, path: str) -> list[ConfigFault]:
    """Options that `target` takes as plain data, but of another type."""
    hints = _hints(target)
    return [
        fault
        for key, value in options.items()
        if key in hints and _is_plain(hints[key])
        for fault in value_faults(hints[key], value, path=f"{path}.{key}")
    ]


def _hints(target: Callable[..., Any]) -> dict[str, Any]:
    """Parameter -> type hint. Boundary to a user's annotations: hints that cannot be read are not checked."""
    try:
        return get_type_hints(target.__init__ if inspect.isclass(target) else target)
    except Exception:  # noqa: BLE001 - the boundary
        return {}


def _is_plain(hint: Any) -> bool:
    """Whether a hint allows only data that a configuration can hold."""
    if get_origin(hint) is Literal or hint in PLAIN:
        return True
    args = [each for each in get_args(hint) if each is not Ellipsis]
    return bool(args) and get_origin(hint) is not Callable and all(map(_is_plain, args))
