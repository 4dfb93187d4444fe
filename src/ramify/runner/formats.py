"""Formats: the format of a run: its task's own, or the one the configuration names.

`chat` is built from the chat template of the engine's model, or of `format_options.template`, and the run's tools. If
an engine takes messages instead of token ids, the format is `messages`; a tag format is then used inside messages.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from ramify import plugins
from ramify.config.decode import decode
from ramify.config.format_options import options_class, plugin_options
from ramify.config.run_config import EngineConfig, RunConfig
from ramify.core.codec import Codec
from ramify.core.engine import Capabilities
from ramify.core.errors import ConfigError
from ramify.core.format import Format, MessageFormat, SystemFormat
from ramify.core.task import Task
from ramify.core.tool import Tool, schema_of
from ramify.engines.chat_template import ChatTemplate, load_template
from ramify.engines.shipped import MODELS
from ramify.environments.task import EnvironmentTask
from ramify.formats.chat import Chat, ChatOptions
from ramify.formats.messages import Messages, MessagesOptions
from ramify.formats.refine import Refine
from ramify.formats.tags import TagFormat

T = TypeVar("T")


def build_format(
    config: RunConfig,
    task: Task,
    codec: Codec,
    *,
    tools: Sequence[Tool],
    engines: Iterable[Capabilities],
    has_conversations: bool = False,
) -> Format:
    """The format of a run with these tools and engines with these capabilities. `has_conversations`: whether problems
    have messages, with which those of an environment open. Raises `ConfigError`."""
    has_conversations = has_conversations and isinstance(task, EnvironmentTask)
    if has_conversations and "opening" not in config.format_options and config.format in ("chat", "messages"):
        config = replace(config, format_options={**config.format_options, "opening": "messages"})
    found = None if config.format is None else plugins.find("format", config.format)
    if all(engine.has_token_ids for engine in engines):
        format = _chat(config, codec, tools) if found is Chat else _named_format(config, task, tools)
        if isinstance(format, Refine):
            format.check_system()
        return format
    if found is Chat:
        raise ConfigError(
            "format 'chat' writes a model's template in token ids, and an engine of this run takes chat messages: its "
            "server has the template; name 'messages', or leave the format out"
        )
    format = _named_format(config, task, tools)
    if config.format is None and isinstance(task, EnvironmentTask) and task.has_plain_format:
        options = MessagesOptions(opening="messages" if has_conversations else "question", answer_tag=task.answer_tag)
        return Messages(schemas=[schema_of(tool) for tool in tools], options=options)
    if isinstance(format, TagFormat):
        return in_messages(format, tools)
    if isinstance(format, Refine):
        return replace(format, speaks="messages")
    is_own = isinstance(format, MessageFormat) or found is not None
    return format if is_own else Messages(schemas=[schema_of(tool) for tool in tools])


def opening_format(format: Format, action: str, system: str | None) -> Format:
    """The format in which an action opens contexts: with its own system message, if it has one. Raises `ConfigError` if
    the format cannot write one."""
    if system is None:
        return format
    if not isinstance(format, SystemFormat):
        raise ConfigError(
            f"actions.{action}.system = {system!r:.80}: the format {type(format).__name__} writes no system message; "
            f"write it into the template (format_options.template for the opening, actions.{action}.template for a "
            "context that quotes), or use format = 'chat', 'refine' or an engine of messages"
        )
    return format.with_system(system)


def in_messages(format: TagFormat, tools: Sequence[Tool]) -> Messages:
    """A tag format in chat messages: its tags, observations and answer. Its opening becomes one user message, without
    the control tokens that the built-in model has around a user's turn."""
    schemas = [schema_of(tool) for tool in tools]
    if unknown := set(format.tags).difference(str(schema["name"]) for schema in schemas):
        raise ConfigError(f"the format has tags for the tools {sorted(unknown)}, but the task has no such tools")
    start, _, end = TagFormat().template.partition("{question}")
    options = MessagesOptions(template=format.template.removeprefix(start).removesuffix(end))
    return Messages(format, schemas=schemas, options=options)


def _named_format(config: RunConfig, task: Task, tools: Sequence[Tool]) -> Format:
    """The format that the configuration names, or the task's own."""
    if config.format is None:
        return with_tags(task.format, tools)
    found = plugins.find("format", config.format)
    kind = options_class(found)
    if found is Messages:
        spoken = task.format if isinstance(task.format, TagFormat) else None
        options = _decoded(MessagesOptions, config)
        return Messages(spoken, schemas=[schema_of(tool) for tool in tools], options=options)
    if kind is None:
        made = plugins.build("format", config.format, **config.format_options)
        format = plugins.whole("format", config.format, made)
    elif kind is found:
        format = _decoded(kind, config)
    else:
        options = _decoded(kind, config)
        format = found(options, **_plugins_of(options))
    return with_tags(format, [tool for tool in tools if all(tool is not own for own in task.tools)])


def _plugins_of(options: Any) -> dict[str, Any]:
    """Option -> the plug-in that it names, for options that name one."""
    kinds = plugin_options(type(options))
    named = {option: name for option in kinds if (name := getattr(options, option)) is not None}
    return {option: plugins.find(kinds[option], name) for option, name in named.items()}


def _chat(config: RunConfig, codec: Codec, tools: Sequence[Tool]) -> Chat:
    render = chat_template(config, has_tools=bool(tools))
    return Chat(render, codec=codec, schemas=[schema_of(tool) for tool in tools], options=chat_options(config))


def chat_options(config: RunConfig) -> ChatOptions:
    """The options of the format `chat`; the usual ones if the run has another format. Raises `ConfigError`."""
    is_chat = config.format is not None and plugins.find("format", config.format) is Chat
    return _decoded(ChatOptions, config) if is_chat else ChatOptions()


def chat_template(config: RunConfig, *, has_tools: bool) -> ChatTemplate:
    """The chat template of the engine's model, or of the options of the format `chat`. Raises `ConfigError`."""
    options, folder = chat_options(config), model_folder(config.engine)
    source = folder if options.template is None else Path(options.template)
    if source is None or not source.exists():
        said = f"engine.model = {config.engine.model!r}" if options.template is None else f"{options.template!r}"
        raise ConfigError(f"no chat template: {said} is no folder here; name one by format_options.template")
    return load_template(
        source,
        tokens=folder,
        name=options.template_name,
        has_tools=has_tools,
        variables=options.variables,
        date=options.date,
    )


def _decoded(kind: type[T], config: RunConfig) -> T:
    """The options of the format."""
    options, faults = decode(kind, config.format_options, path="format_options")
    if options is None:
        raise ConfigError("; ".join(f"{fault.path}: {fault.message}" for fault in faults))
    return options


def with_tags(format: Format, tools: Sequence[Tool]) -> Format:
    """The format, with a tag added for every tool that has none. The tag is the tool's name. Raises `ConfigError` if
    another tool has that tag."""
    if not isinstance(format, TagFormat):
        return format
    others = {tool.name: tool.name for tool in tools if tool.name not in format.tags}
    for name, tag in format.tags.items():
        if tag in others:
            raise ConfigError(
                f"tools.use.{tag}: the tag <{tag}> calls the task's tool {name!r}; write tools.use.{name} to replace "
                "it, or give yours another name"
            )
    return replace(format, tags={**format.tags, **others}) if others else format


def model_folder(engine: EngineConfig) -> Path | None:
    """Folder with the files of the engine's model; None = not on this machine."""
    if engine.model is None:
        return MODELS["builtin"] if engine.name == EngineConfig().name else None
    folder = MODELS.get(engine.model, Path(engine.model))
    return folder if folder.is_dir() else None
