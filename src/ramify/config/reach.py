"""Reach: what a configuration makes a run load, start, connect to or open, for whoever must decide whether to trust it.

Built-in parts and shipped models reach nothing. `reach` tells names and looks none up: it loads nothing.
"""

import importlib.util
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from ramify import plugins
from ramify.config.run_config import EngineConfig, RunConfig
from ramify.credit import NAMES
from ramify.engines.shipped import MODELS

_OF_FILE: Final = re.compile(r"(.+\.py):\w+")
_UNREAD: Final = re.compile(r"data\.questions|actions\.[^.]*\.(system|template|text)|strategy\.reading|preset")
"""Settings that are text and name nothing."""


def reach(config: RunConfig) -> list[str]:
    """One line for each thing: what is done, and the setting that says so."""
    return list(dict.fromkeys((*_parts(config), *_servers(config), *_leaves(config))))


def named_parts(config: RunConfig) -> Iterator[tuple[str, plugins.Kind, str]]:
    """Setting, kind and name of every plug-in that a setting names."""
    yield "task.name", "task", config.task.name
    if config.environment.name is not None:
        yield "environment.name", "environment", config.environment.name
    yield "strategy.name", "strategy", config.strategy.name
    for path, engine in engines_of(config).items():
        yield f"{path}.name", "engine", engine.name
    for name, tool in config.tools.use.items():
        yield f"tools.use.{name}", "tool", tool.kind or name
    for name, judge in config.judges.items():
        yield f"judges.{name}", "judge", judge.kind or name
    if config.format is not None:
        yield "format", "format", config.format
    if config.growth.prune not in (None, "task"):
        yield "growth.prune", "prune", str(config.growth.prune)
    yield "rows.sample", "sample", config.rows.sample
    if config.credit not in NAMES:
        yield "credit", "credit", config.credit


def engines_of(config: RunConfig) -> Mapping[str, EngineConfig]:
    """Setting -> engine, the policy's first."""
    return {"engine": config.engine, **{f"engines.{name}": engine for name, engine in config.engines.items()}}


def plugin_files(config: RunConfig) -> list[Path]:
    """The files that the named plug-ins come from, without those of this package. A module that is named is looked up,
    which may load the packages around it."""
    texts = (text for _, text in _texts(msgspec.to_builtins(config), ""))
    files = {Path(found[1]) for text in texts if (found := _OF_FILE.fullmatch(text))}
    named = (name for _, kind, name in named_parts(config) if not plugins.is_built_in(kind, name))
    files |= {path for name in named if (path := _module_file(name.rpartition(":")[0])) is not None}
    return sorted(path for path in files if path.is_file())


def _module_file(module: str) -> Path | None:
    """The file of a module outside this package; None = it has none."""
    if not module or module.endswith(".py") or module.partition(".")[0] in ("ramify", "__main__"):
        return None
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return None
    return Path(spec.origin) if spec is not None and spec.origin and spec.has_location else None


def _parts(config: RunConfig) -> Iterator[str]:
    """Plug-ins that are not built in, and every tool: a journal decides what tools are called with."""
    for setting, kind, name in named_parts(config):
        if not plugins.is_built_in(kind, name):
            found = _OF_FILE.fullmatch(name)
            yield f"runs {found[1] if found else name} ({setting})"
        elif kind == "tool":
            yield f"calls the tool {name} ({setting})"


def _servers(config: RunConfig) -> Iterator[str]:
    for path, engine in engines_of(config).items():
        if engine.model is not None and engine.model not in MODELS:
            yield f"uses the model {engine.model} ({path}.model)"
        if engine.replicas:
            yield f"starts {engine.replicas} servers of {engine.model} ({path}.replicas)"
    for name, tool in config.tools.use.items():
        if isinstance(command := tool.options.get("command"), str):
            args = tool.options.get("args", ())
            said = " ".join([command, *(map(str, args) if isinstance(args, list | tuple) else ())])
            yield f"starts {said} (tools.use.{name}.options.command)"


def _leaves(config: RunConfig) -> Iterator[str]:
    """Addresses, files and functions in any setting."""
    for path, text in _texts(msgspec.to_builtins(config), ""):
        if _UNREAD.match(path):
            continue
        if found := _OF_FILE.fullmatch(text):
            yield f"runs {found[1]} ({path})"
        elif "://" in text:
            yield f"connects to {text} ({path})"
        elif text.startswith(("/", "~", "./", "../")):
            verb = "writes" if path.endswith((".log", ".logs", ".attachments")) else "opens"
            yield f"{verb} {text} ({path})"


def _texts(value: Any, path: str) -> Iterator[tuple[str, str]]:
    """Every text in a tree of tables and lists, with its dotted path."""
    match value:
        case str():
            yield path, value
        case Mapping():
            for key, below in value.items():
                yield from _texts(below, f"{path}.{key}" if path else str(key))
        case list() | tuple():
            for below in value:
                yield from _texts(below, path)
        case _:
            pass
