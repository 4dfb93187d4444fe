"""Tools: those a run has, the task's and those its configuration names."""

from collections.abc import Sequence
from typing import Any

from ramify import plugins
from ramify.config.run_config import ToolConfig, ToolsConfig
from ramify.core.task import Task
from ramify.core.tool import Isolated, Tool, ToolSet

UNWALLED = "none"
"""The isolation of a run none of whose tools runs foreign code."""


def tools_of(task: Task, config: ToolsConfig) -> tuple[Tool, ...]:
    """The task's tools, then those of `tools.use`; one called as a tool of the task takes its place.

    Raises `ConfigError` where a tool cannot be made.
    """
    tools = {tool.name: tool for tool in task.tools}
    for name, entry in config.use.items():
        tools |= {tool.name: tool for tool in _built(name, entry)}
    return tuple(tools.values())


def isolation_of(tools: Sequence[Tool]) -> str:
    """How the tools are kept apart from the machine, for the record: `none`, or `strict` and others by tool."""
    walls = {tool.name: tool.isolation for tool in tools if isinstance(tool, Isolated)}
    return ", ".join(f"{name}={wall}" for name, wall in walls.items()) or UNWALLED


def _built(name: str, entry: ToolConfig) -> Sequence[Tool]:
    kind = entry.kind or name
    found: Any = plugins.find("tool", kind)
    options = dict(entry.options)
    if callable(found) and not plugins.unknown_keywords(found, {"name": name}):
        options.setdefault("name", name)
    built: Tool | ToolSet = plugins.build("tool", kind, **options)
    return built.tools if isinstance(built, ToolSet) else [built]
