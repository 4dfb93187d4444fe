"""Configure: combines defaults, preset, files and overrides into one checked `RunConfig`.

Precedence, weakest first: defaults, the preset, `ramify.toml` of the folder, further files in order, flags, `--set`.
All faults of all layers are reported at once, with the file or option they are in, before anything starts. Then the
columns of a data file are found, which is read for it. Plug-ins
that the configuration names are found, and the options of a strategy are completed, so that a run folder records all
that was used. The environment is not a layer: it holds secrets, never settings.
"""

import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

import msgspec

from ramify import plugins
from ramify.config.decode import ConfigFault, decode
from ramify.config.format_options import anchored_format_options, format_actions, format_faults
from ramify.config.judge_options import anchored_judge, judge_faults
from ramify.config.layers import file_layers, flag_layers, merged, override_layers, preset_layers, source_of
from ramify.config.run_config import (
    EngineConfig,
    EnvironmentConfig,
    GrowthConfig,
    RunConfig,
    StrategyConfig,
    ToolConfig,
)
from ramify.config.strategy_options import read_options
from ramify.config.toml import toml_text
from ramify.config.tool_options import option_faults
from ramify.core.errors import ConfigError, nearest_or_file
from ramify.credit import NAMES
from ramify.edge.patience import Patience
from ramify.tasks.data import DataConfig, read_problems
from ramify.tasks.data_mapping import mapped

BUILTIN = EngineConfig().name
OWN_FORMAT = "task"
"""In a file: use the task's own format, whatever a lower layer names."""
VALUE = "value"
"""Keyword by which a prune rule gets a judge's score."""
TASK_PRUNE = "task"
"""Name of the current task's own prune rule."""


@dataclass(frozen=True, slots=True)
class Resolved:
    """A checked configuration, and the source of each setting that is not a default, by dotted path."""

    config: RunConfig
    sources: Mapping[str, str] = field(default_factory=dict)


def resolve(
    *,
    preset: str | None = None,
    folder: Path | None = None,
    files: Iterable[Path] = (),
    flags: Mapping[str, Any] | None = None,
    flag_names: Mapping[str, str] | None = None,
    overrides: Sequence[str] = (),
    is_small: bool | None = None,
) -> Resolved:
    """Combine all layers and check the result.

    `ramify.toml` is looked for in `folder`; None = nowhere. `flags` maps dotted paths to values, and `flag_names` maps
    them to what the user typed. `overrides` are texts `a.b=c`. Reads files and imports plug-ins. Raises `ConfigError`
    with every fault.
    """
    unread: list[str] = []
    layers = [
        *file_layers(folder, files, unread),
        *flag_layers(flags or {}, flag_names or {}),
        *override_layers(overrides, unread),
    ]
    named = [layer.values["preset"] for layer in layers if "preset" in layer.values]
    if is_small is None:
        is_small = _runs_builtin(merged(layers)[0])
    chosen = preset or (named[-1] if named else None)
    base = preset_layers(chosen, is_small=is_small, faults=unread)
    values, sources = merged([*base, *layers])
    if chosen is not None:
        values["preset"] = str(chosen)
    has_own = "data.path" in sources or ("data.questions" in sources and not is_small)
    if has_own and "task.name" not in sources:
        values.setdefault("task", {})["name"] = "data"
    config, faults = checked(values)
    lines = [*unread, *(f"{source_of(sources, fault.path)}: {_said(fault)}" for fault in faults)]
    if config is None or lines:
        raise ConfigError(_report(lines))
    return Resolved(_with_data(config, sources), sources)


def _with_data(config: RunConfig, sources: Mapping[str, str]) -> RunConfig:
    """The configuration with the columns of its data files, and with all of the file's rows unless a number is asked
    for. A preset's number is an example. A file that is not there is left to whoever reads it."""
    asked = {path for path, source in sources.items() if not source.startswith("preset ")}
    if config.service is not None and config.service.rollout_function is not None:
        asked.add("data.secret")  # A rollout function may read any column, such as the turns of SFT.
    config = replace(config, data=_mapped(config.data, "data", asked))
    if config.service is not None:
        evals = config.service.eval.items()
        own = {name: replace(e, data=_mapped(e.data, f"service.eval.{name}.data", asked)) for name, e in evals}
        return replace(config, service=replace(config.service, eval=own))
    if "prompts" in asked or not _is_there(config.data):
        return config
    return replace(config, prompts=len(read_problems(config.data)[0]))


def _mapped(data: DataConfig, path: str, asked: Set[str]) -> DataConfig:
    if data.path is None or not _is_there(data):
        return data
    return mapped(data, {field.name for field in fields(DataConfig) if f"{path}.{field.name}" in asked})


def _is_there(data: DataConfig) -> bool:
    return bool(data.questions) or (data.path is not None and Path(data.path).exists())


def _runs_builtin(values: Mapping[str, Any]) -> bool:
    """Whether these settings use the built-in engine."""
    engine = values.get("engine", {})
    return isinstance(engine, Mapping) and engine.get("name", BUILTIN) == BUILTIN


def checked(values: Mapping[str, Any]) -> tuple[RunConfig | None, list[ConfigFault]]:
    """Decode `values` and check all they name. Returns the completed configuration, or None, and the faults."""
    if values.get("format") == OWN_FORMAT:
        values = {**values, "format": None}
    if isinstance(actions := values.get("actions", {}), Mapping):
        values = {**values, "actions": _actions(actions, values.get("format"))}
    config, faults = decode(RunConfig, values)
    if config is None:
        return None, faults
    config = _anchored(config)
    config, faults = _with_strategy_options(config)
    faults += _named_faults(config)
    return (None if faults else config), faults


def _actions(given: Mapping[str, Any], format: object) -> dict[str, Any]:
    """The given actions, completed with those that every run has and those of the format."""
    known: dict[str, Any] = {"policy": {}, **format_actions(format)}
    filled = {name: {**known.get(name, {}), **a} if isinstance(a, Mapping) else a for name, a in given.items()}
    return {**known, **filled}


def to_toml(config: RunConfig) -> str:
    """The whole configuration as TOML, including defaults. `from_toml` reads it back unchanged."""
    return toml_text(_plain(config))


def from_toml(text: str, *, source: str = "config.toml") -> RunConfig:
    """A configuration written by `to_toml`. Its preset is only a name: no values are taken from it."""
    config, faults = checked(_parsed(text, source))
    if config is None:
        raise ConfigError(_report([f"{source}: {_said(fault)}" for fault in faults]))
    return config


def recorded(text: str, *, source: str = "config.toml") -> RunConfig:
    """A configuration written by `to_toml`, for looking at its run: no plug-in that it names is loaded or checked."""
    values = _parsed(text, source)
    actions, format = values.get("actions", {}), values.get("format")
    if isinstance(actions, Mapping):
        is_known = isinstance(format, str) and plugins.is_built_in("format", format)
        values = {**values, "actions": _actions(actions, format if is_known else None)}
    config, faults = decode(RunConfig, values)
    if config is not None:
        try:
            with plugins.built_in_only():
                config, faults = _with_strategy_options(config)
        except plugins.NotLoaded:
            pass  # The options stay as they are recorded.
    if config is None or faults:
        raise ConfigError(_report([f"{source}: {_said(fault)}" for fault in faults]))
    return config


def _parsed(text: str, source: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{source}: this is no TOML: {error}") from error


def _anchored(config: RunConfig) -> RunConfig:
    """The configuration with absolute paths for all files it names, so that a run can be resumed from anywhere."""
    path = config.data.path
    return replace(
        config,
        task=replace(config.task, name=plugins.anchored(config.task.name)),
        # Not resolved: the name of a link says how to read the file, and the hub's cache consists of links.
        data=replace(config.data, path=path and str(Path(path).absolute())),
        environment=replace(
            config.environment, name=config.environment.name and plugins.anchored(config.environment.name)
        ),
        strategy=replace(config.strategy, name=plugins.anchored(config.strategy.name)),
        engine=_anchored_engine(config.engine),
        engines={name: _anchored_engine(engine) for name, engine in config.engines.items()},
        tools=replace(config.tools, use={name: _anchored_tool(name, tool) for name, tool in config.tools.use.items()}),
        judges={name: anchored_judge(name, judge) for name, judge in config.judges.items()},
        format=config.format and plugins.anchored(config.format),
        format_options=anchored_format_options(config.format, config.format_options),
        growth=replace(config.growth, prune=config.growth.prune and plugins.anchored(config.growth.prune)),
        rows=replace(config.rows, sample=plugins.anchored(config.rows.sample)),
        credit=plugins.anchored(config.credit),
    )


def _anchored_engine(engine: EngineConfig) -> EngineConfig:
    python, logs = engine.server.python, _absolute(engine.server.logs)
    if python is not None and "/" in python:
        # Keep the link: the interpreter of an environment is a link, and finds its environment by its path.
        python = str(Path.cwd() / python)
    server = replace(engine.server, python=python, logs=logs)
    return replace(engine, name=plugins.anchored(engine.name), log=_absolute(engine.log), server=server)


def _anchored_tool(name: str, tool: ToolConfig) -> ToolConfig:
    """The tool with absolute paths for its file and for the options that its class takes as paths."""
    kind = tool.kind and plugins.anchored(tool.kind)
    try:
        paths = plugins.options_of(plugins.find("tool", kind or name), Path)
    except ConfigError:
        return tool  # The check of the tool reports this fault.
    options = {k: _absolute(v) if k in paths and isinstance(v, str) else v for k, v in tool.options.items()}
    return replace(tool, kind=kind, options=options)


def _absolute(path: str | None) -> str | None:
    return path and str(Path(path).resolve())


def _with_strategy_options(config: RunConfig) -> tuple[RunConfig, list[ConfigFault]]:
    """The options of the strategy as its own `Config` reads them, completed with its defaults."""
    name, given = config.strategy.name, config.strategy.options
    try:
        kind = plugins.config_class(plugins.find("strategy", name))
    except ConfigError as error:
        return config, [ConfigFault("strategy.name", str(error))]
    options, reading, faults = read_options(kind, given)
    if options is None:
        return config, faults
    read = StrategyConfig(name=name, options=_plain(options), reading=reading or config.strategy.reading)
    return replace(config, strategy=read), []


def _named_faults(config: RunConfig) -> list[ConfigFault]:
    """Faults of the other plug-ins that the configuration names."""
    faults = _faults_of("rows.sample", lambda: plugins.find("sample", config.rows.sample))
    if config.credit not in NAMES:
        faults += _credit_faults(config.credit)
    faults += _format_faults(config)
    faults += _prune_faults(config.growth)
    faults += _constructor_faults("task", config.task.name, config.task.options)
    faults += _environment_faults(config.environment)
    for path, engine in {"engine": config.engine, **{f"engines.{n}": e for n, e in config.engines.items()}}.items():
        faults += _constructor_faults("engine", engine.name, engine.options, path=path)
    for name, tool in config.tools.use.items():
        faults += option_faults(name, tool)
    for name, judge in config.judges.items():
        faults += judge_faults(name, judge)
    return faults


def _credit_faults(name: str) -> list[ConfigFault]:
    """Faults of a credit that is not built in: an unknown name, or a user's file without the function."""
    if ":" in name:
        return _faults_of("credit", lambda: plugins.find("credit", name))
    return [ConfigFault("credit", f"unknown credit {name!r}; {nearest_or_file(name, NAMES, 'function')}")]


def _prune_faults(growth: GrowthConfig) -> list[ConfigFault]:
    """Faults of the prune rule, its keywords and the judge it reads."""
    path, name, options, judge = "growth.prune_options", growth.prune, growth.prune_options, growth.prune_judge
    if name is None or name == TASK_PRUNE:
        own = [ConfigFault(path, "they are of a rule that growth.prune names")] if options else []
        return own + ([ConfigFault("growth.prune_judge", "the rule reads no value of a judge")] if judge else [])
    try:
        rule = plugins.find("prune", name)
    except ConfigError as error:
        return [ConfigFault("growth.prune", str(error))]
    unknown = plugins.unknown_keywords(rule, options)
    missing = [key for key in plugins.missing_keywords(rule, options)[1:] if key != VALUE]
    reads = not plugins.unknown_keywords(rule, {VALUE: None})
    if VALUE in options:
        return [ConfigFault(f"{path}.{VALUE}", "it is what growth.prune_judge gives")]
    if reads != (judge is not None):
        said = f"the rule {name!r} reads {'its value' if reads else 'no value of a judge'}"
        return [ConfigFault("growth.prune_judge", said)]
    return [
        *(ConfigFault(f"{path}.{key}", message) for key, message in unknown.items()),
        *(ConfigFault(f"{path}.{key}", f"the rule {name!r} needs it") for key in missing),
    ]


def _format_faults(config: RunConfig) -> list[ConfigFault]:
    """Faults of the format and its options."""
    format, options = config.format, config.format_options
    if format is None:
        return [ConfigFault("format_options", 'they are of a format that is named: format = "chat"')] if options else []
    return format_faults(format, options)


def _environment_faults(environment: EnvironmentConfig) -> list[ConfigFault]:
    """Faults of the environment's name and its options."""
    if environment.name is None:
        fault = ConfigFault("environment.options", 'they are of an environment that is named: environment.name = "gym"')
        return [fault] if environment.options else []
    return _constructor_faults("environment", environment.name, environment.options)


def _constructor_faults(
    kind: Literal["task", "environment", "engine"], name: str, options: Mapping[str, Any], *, path: str | None = None
) -> list[ConfigFault]:
    """Faults of a plug-in's name, and of options that its constructor does not take."""
    try:
        found = plugins.find(kind, name)
        messages = plugins.unknown_keywords(found, options)
    except ConfigError as error:
        return [ConfigFault(f"{path or kind}.name", str(error))]
    set_elsewhere = plugins.options_of(found, Patience) & set(options)
    messages |= dict.fromkeys(set_elsewhere, f"it is set by {path or kind}.retry.patience")
    return [ConfigFault(f"{path or kind}.options.{key}", message) for key, message in messages.items()]


def _faults_of(path: str, action: Callable[[], object]) -> list[ConfigFault]:
    try:
        action()
    except ConfigError as error:
        return [ConfigFault(path, str(error))]
    return []


def _plain(value: Any) -> dict[str, Any]:
    """A dataclass as TOML and JSON data without None: tuples become lists, dataclasses become tables."""
    return _without_none(msgspec.json.decode(msgspec.json.encode(value)))


def _without_none(table: dict[str, Any]) -> dict[str, Any]:
    return {
        key: _without_none(value) if isinstance(value, dict) else value
        for key, value in table.items()
        if value is not None
    }


def _said(fault: ConfigFault) -> str:
    return f"{fault.path}: {fault.message}" if fault.path else fault.message


def _report(lines: Sequence[str]) -> str:
    """One fault as it is; several as a list."""
    return lines[0] if len(lines) == 1 else "\n".join((f"{len(lines)} faults:", *(f"  {line}" for line in lines)))
