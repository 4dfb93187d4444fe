"""Layers: the sources of settings, and how they are combined.

A layer is a nested table with the name of its source. Reading does not stop at the first fault: faults are collected in
a list and reading goes on.
"""

import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ramify.config.presets import preset as find_preset
from ramify.core.errors import ConfigError

FILE_NAME = "ramify.toml"
"""Read from the folder in which a command is started, if it exists."""
NAMED_SECTIONS = ("task", "strategy", "engine")
"""Sections whose options belong to the plug-in they name. In the same way, a judge's options belong to its kind."""


@dataclass(frozen=True, slots=True)
class Layer:
    """Settings from one source."""

    source: str
    values: Mapping[str, Any]


def merged(layers: Iterable[Layer]) -> tuple[dict[str, Any], dict[str, str]]:
    """All layers as one table, in which later layers win key by key, and the last source of each dotted path.

    If a layer names another task, strategy, engine or kind of judge, the options given for the earlier one are dropped.
    """
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for layer in map(_spelt_out, layers):
        before = _named(values)
        for path, (_, name) in _named(layer.values).items():
            table, name_before = before.get(path, ({}, name))
            if name is not None and name != (name_before or path.rpartition(".")[2]):
                table.pop("options", None)
        _merge(values, layer.values, source=layer.source, sources=sources, path="")
    return values, sources


def source_of(sources: Mapping[str, str], path: str) -> str:
    """The source that set the value at a dotted path, or the table around it."""
    while path:
        if path in sources:
            return sources[path]
        path = path.rpartition(".")[0]
    return "configuration"


def preset_layers(name: object, *, is_small: bool, faults: list[str]) -> Iterator[Layer]:
    """The layer of a preset and, if the built-in model runs, of its `[small]` values; none for None. Mutates
    `faults`."""
    if name is None:
        return
    try:
        found = find_preset(str(name))
    except ConfigError as error:
        faults.append(str(error))
        return
    yield Layer(f"preset {name}", {**found.values, "preset": str(name)})
    if is_small and found.small:
        yield Layer(f"preset {name}, [small]", found.small)


def file_layers(folder: Path | None, files: Iterable[Path], faults: list[str]) -> Iterator[Layer]:
    """`ramify.toml` of `folder`, if it exists, then `files`. Mutates `faults`."""
    default = [] if folder is None or not (folder / FILE_NAME).exists() else [folder / FILE_NAME]
    for path in (*default, *files):
        try:
            yield Layer(str(path), tomllib.loads(path.read_text("utf-8-sig")))
        except OSError as error:
            faults.append(f"{path}: cannot be read: {error.strerror}")
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            faults.append(f"{path}: this is no TOML: {error}")


def flag_layers(flags: Mapping[str, Any], names: Mapping[str, str]) -> Iterator[Layer]:
    """A layer for each dotted path, names of sections first. `names` maps a path to what the user typed."""
    for path, value in sorted(flags.items(), key=lambda flag: not _is_name(flag[0])):
        yield Layer(names.get(path, "argument"), _nested(path, value))


def override_layers(overrides: Sequence[str], faults: list[str]) -> Iterator[Layer]:
    """A layer for each text `a.b=c`, names of sections first. A value is TOML, or else a string. Mutates `faults`."""
    for text in sorted(overrides, key=lambda text: not _is_name(text.partition("=")[0].strip())):
        path, equals, value = text.partition("=")
        if equals and all(key.strip() for key in path.split(".")):
            yield Layer(f"--set {text}", _nested(path, toml_value(value.strip())))
        else:
            faults.append(f"--set {text}: an override reads like growth.max_tool_calls=3")


def _merge(
    table: dict[str, Any], values: Mapping[str, Any], *, source: str, sources: dict[str, str], path: str
) -> None:
    for key, value in values.items():
        at = f"{path}.{key}" if path else key
        sources[at] = source
        below = table.setdefault(key, {}) if isinstance(value, Mapping) else None
        if isinstance(below, dict):
            _merge(below, value, source=source, sources=sources, path=at)
        else:
            table[key] = value


def _spelt_out(layer: Layer) -> Layer:
    """The layer with `data = "FILE"` written as the table that it is short for."""
    data = layer.values.get("data")
    return replace(layer, values={**layer.values, "data": {"path": data}}) if isinstance(data, str) else layer


def _named(values: Mapping[str, Any]) -> dict[str, tuple[dict[str, Any], Any]]:
    """Dotted path -> a table whose options belong to the plug-in it names, and that name; None = it names none."""
    judges = values.get("judges")
    tables = {section: (values.get(section), "name") for section in NAMED_SECTIONS}
    if isinstance(judges, Mapping):
        tables |= {f"judges.{name}": (entry, "kind") for name, entry in judges.items()}
    return {path: (table, table.get(key)) for path, (table, key) in tables.items() if isinstance(table, dict)}


def _is_name(path: str) -> bool:
    """Whether a path names the plug-in of a section. Options given beside the name belong to it, in any order."""
    is_kind = path.startswith("judges.") and path.endswith(".kind")
    return is_kind or path in {f"{section}.name" for section in NAMED_SECTIONS}


def _nested(path: str, value: Any) -> dict[str, Any]:
    """A value at the path `a.b` as the table {a: {b: value}}."""
    for key in reversed(path.split(".")):
        value = {key.strip(): value}
    return value


def toml_value(text: str) -> Any:
    """A value as TOML writes it; a word without quotes is a text."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
