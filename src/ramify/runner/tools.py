"""Tools of a run: the task's and those of its configuration."""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ramify import plugins
from ramify.config.run_config import ToolConfig, ToolsConfig
from ramify.config.tool_options import found_tool, option_faults
from ramify.core.errors import ConfigError
from ramify.core.task import Task
from ramify.core.tool import Isolated, JoinsState, Listing, Tool, ToolSet
from ramify.tools.function import FunctionTool

UNWALLED = "none"
"""The isolation of a run whose tools run no foreign code."""


def listed(config: ToolsConfig) -> ToolsConfig:
    """The configuration with what tools' servers say of themselves, so that they need not be asked again.

    Asks the servers now. Raises `ConfigError` if one does not answer.
    """
    built = _all_built(config)
    return replace(config, use={name: _listed(built[name], entry) for name, entry in config.use.items()})


def tools_of(task: Task, config: ToolsConfig) -> tuple[Tool, ...]:
    """The task's tools, then those of `tools.use`. A tool of `tools.use` replaces a tool of the task with the same
    name.

    Raises `ConfigError` if a tool cannot be made, or two entries make tools with the same name.
    """
    used: dict[str, Tool] = {}
    places: dict[str, str] = {}
    for place, built in _all_built(config).items():
        for tool in _tools(built):
            if tool.name in used:
                raise ConfigError(
                    f"tools.use.{places[tool.name]} and tools.use.{place} both have a tool {tool.name!r}; a name calls "
                    "one tool: rename one, or leave it out"
                )
            used[tool.name], places[tool.name] = tool, place
    own = [used.pop(tool.name, tool) for tool in task.tools]
    return (*own, *used.values())


def isolation_of(tools: Sequence[Tool]) -> str:
    """How the tools are isolated from the machine, for the record: `none`, or for example `python=strict`, per tool."""
    walls = {tool.name: tool.isolation for tool in tools if isinstance(tool, Isolated)}
    return ", ".join(f"{name}={wall}" for name, wall in walls.items()) or UNWALLED


def _listed(built: Tool | ToolSet, entry: ToolConfig) -> ToolConfig:
    if not isinstance(built, Listing):
        return entry
    return replace(entry, options={**entry.options, **built.recorded()})


def _tools(built: Tool | ToolSet) -> Sequence[Tool]:
    return built.tools if isinstance(built, ToolSet) else [built]


def _all_built(config: ToolsConfig) -> dict[str, Tool | ToolSet]:
    """What every entry makes, by its name."""
    built = {name: _built(name, entry) for name, entry in config.use.items()}
    return {name: each.joined(built) if isinstance(each, JoinsState) else each for name, each in built.items()}


def _built(name: str, entry: ToolConfig) -> Tool | ToolSet:
    """The tool that an entry makes. If the class or function accepts another name, it gets the entry's name."""
    if faults := option_faults(name, entry):
        raise ConfigError("; ".join(f"{fault.path}: {fault.message}" for fault in faults))
    found: Any = found_tool(name, entry)
    if isinstance(found, FunctionTool):
        return found.configured(**{"name": name, **entry.options})
    if not inspect.isclass(found):
        return plugins.whole("tool", entry.kind or name, found)
    options: Mapping[str, Any] = entry.options
    if not plugins.unknown_keywords(found, {"name": name}):
        options = {"name": name, **options}
    return plugins.whole("tool", entry.kind or name, plugins.build("tool", entry.kind or name, **options))
