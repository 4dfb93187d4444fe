"""Formats: the format a run speaks: its task's own, or the one the configuration names.

`chat` is built from the chat template of the engine's model, or of `format_options.template`, and the task's tools.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ramify import plugins
from ramify.config.decode import decode
from ramify.config.run_config import EngineConfig, RunConfig
from ramify.core.codec import Codec
from ramify.core.errors import ConfigError
from ramify.core.format import Format
from ramify.core.judge import Judge
from ramify.core.task import Task
from ramify.core.tool import Tool, schema_of
from ramify.engines.builtin import FOLDER
from ramify.engines.chat_template import load_template
from ramify.formats.chat import Chat, ChatOptions
from ramify.formats.tags import TagFormat
from ramify.judges.exact import Exact


def build_format(config: RunConfig, task: Task, codec: Codec, tools: Sequence[Tool]) -> Format:
    """The format of a run that has these tools. Raises `ConfigError`."""
    if config.format is None:
        return with_tags(task.format, tools)
    if plugins.find("format", config.format) is not Chat:
        return plugins.build("format", config.format, **config.format_options)
    options, faults = decode(ChatOptions, config.format_options, path="format_options")
    if options is None:
        raise ConfigError("; ".join(f"{fault.path}: {fault.message}" for fault in faults))
    folder = model_folder(config.engine)
    source = folder if options.template is None else Path(options.template)
    if source is None or not source.exists():
        said = f"engine.model = {config.engine.model!r}" if options.template is None else f"{options.template!r}"
        raise ConfigError(f"no chat template: {said} is no folder here; name one by format_options.template")
    render = load_template(
        source,
        tokens=folder,
        name=options.template_name,
        has_tools=bool(tools),
        variables=options.variables,
        date=options.date,
    )
    return Chat(render, codec=codec, schemas=[schema_of(tool) for tool in tools], options=options)


def with_tags(format: Format, tools: Sequence[Tool]) -> Format:
    """A task's format, with a tag for every tool that it has none for: the tool's name."""
    if not isinstance(format, TagFormat):
        return format
    others = {tool.name: tool.name for tool in tools if tool.name not in format.tags}
    return replace(format, tags={**format.tags, **others}) if others else format


def model_folder(engine: EngineConfig) -> Path | None:
    """Where the files of the engine's model are; None = not on this machine."""
    if engine.model is None:
        return FOLDER if engine.name == EngineConfig().name else None
    return Path(engine.model) if Path(engine.model).is_dir() else None


def judges_of(task: Task, format: Format) -> list[Judge]:
    """The task's judges; one that reads answers by a format reads them by the run's."""
    return [replace(judge, format=format) if isinstance(judge, Exact) else judge for judge in task.judges]
