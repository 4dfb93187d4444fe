"""Build: makes a run from its configuration: its task, its engines, its problems.

Boundary to plug-in code: whatever a task or an engine raises while it is made becomes a `ConfigError` that names it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ramify import plugins
from ramify.config.configure import BUILTIN, resolve
from ramify.config.reach import named_parts
from ramify.config.run_config import EngineConfig, EnvironmentConfig, RunConfig, StrategyConfig
from ramify.core.engine import Engine
from ramify.core.environment import Environment, Reward
from ramify.core.errors import ConfigError, RamifyError
from ramify.core.problem import Problem
from ramify.core.shard import WHOLE, Portion, Shard
from ramify.core.strategy import Strategy
from ramify.core.task import Task
from ramify.edge.error_text import error_text
from ramify.edge.patience import Patience
from ramify.engines.fleet.replicas import Replicas
from ramify.engines.logged import Logged
from ramify.environments.task import EnvironmentTask
from ramify.runner.prepared import Prepared, prepare
from ramify.tasks.data import DataFile

Measured = Callable[[Engine, str], Engine]
"""Puts an observing layer between an engine and the layer that retries its requests. Arguments: the engine and its
model's name. The result must behave like the engine."""


def prepared_run(
    config: RunConfig,
    problems: Sequence[Problem | str] | Portion | None = None,
    *,
    engine: Engine | None = None,
    engines: Mapping[str, Engine] | None = None,
    task: Task | None = None,
    strategy: type[Strategy] | None = None,
    in_front: Callable[[Engine], Engine] | None = None,
    measured: Measured | None = None,
    shard: Shard = WHOLE,
) -> Prepared:
    """Make and check the parts of a run. Objects passed here replace what the config names. `in_front` is as in
    `prepare`; `measured` is called for each engine built here. The run takes the problems of `shard`, or the portion it
    is given. Raises `ConfigError`."""
    task = task or build_task(_asking(config, problems))
    build = build_engine if measured is None else lambda each: measured(build_engine(each), each.model or "")
    given = engines or {}
    every = {name: given.get(name) or build(each) for name, each in config.engines.items()}
    policy = engine or build(config.engine)
    try:
        portion = problems if isinstance(problems, Portion) else shard.of(_named(problems, task, config))
        return prepare(
            config, task=task, engines=every, engine=policy, problems=portion, strategy=strategy, in_front=in_front
        )
    except RamifyError:
        raise
    except Exception as error:  # boundary to plug-ins that have all that is wanted, and nothing sound behind it
        named = ((kind, name) for _, kind, name in named_parts(config) if not plugins.is_built_in(kind, name))
        own = [f"{kind} {name!r} ({plugins.place_of(name)})" for kind, name in named]
        if not own:
            raise
        raise ConfigError(f"the run cannot be prepared with {', '.join(own)}: {error_text(error)}") from error


def problems_of(config: RunConfig) -> Sequence[Problem]:
    """All problems of a run. Raises `ConfigError`."""
    return _problems_of(build_task(config), config)


def _named(problems: Sequence[Problem | str] | None, task: Task, config: RunConfig) -> Sequence[Problem]:
    """The given problems, bare questions made into problems; None = as many of the task's as the configuration says."""
    if problems is None:
        return _problems_of(task, config)
    return [p if isinstance(p, Problem) else Problem(f"question-{i}", p) for i, p in enumerate(problems)]


def _problems_of(task: Task, config: RunConfig) -> Sequence[Problem]:
    """The task's problems, or those of a data file. Boundary to plug-in code: its errors become a `ConfigError`."""
    has_own = config.data.path is not None or bool(config.data.questions)
    source = DataFile(config.data) if has_own and not isinstance(task, DataFile) else task
    try:
        return source.problems(config.task.split, config.prompts, config.seed)
    except RamifyError:
        raise
    except Exception as error:
        raise ConfigError(f"{_said(task, config)} has no problems to give: {error_text(error)}") from error


def _said(task: Task, config: RunConfig) -> str:
    """What a task is called in errors."""
    if isinstance(task, EnvironmentTask):
        return f"environment {task.environment.name!r}"
    return f"task {config.task.name!r}"


def _asking(config: RunConfig, problems: Sequence[Problem | str] | Portion | None) -> RunConfig:
    """The configuration, with the given problems as the questions of a task that would otherwise need a file."""
    if config.task.name != "data" or config.data.path is not None or config.data.questions:
        return config
    given = problems.problems if isinstance(problems, Portion) else problems or ()
    questions = tuple(each if isinstance(each, str) else each.question for each in given)
    return replace(config, data=replace(config.data, questions=questions))


def build_task(config: RunConfig) -> Task:
    """The task of a run: its environment's, if it names one."""
    if config.environment.name is not None:
        return _environment_task(config.environment)
    options = dict(config.task.options)
    if config.task.name == "data":
        options["data"] = config.data
    return plugins.whole("task", config.task.name, plugins.build("task", config.task.name, **options))


def build_environment(config: EnvironmentConfig) -> Environment:
    """The environment that `config` names. Raises `ConfigError`."""
    name = config.name or ""
    return plugins.whole("environment", name, plugins.build("environment", name, **config.options))


def _environment_task(config: EnvironmentConfig) -> Task:
    environment = build_environment(config)
    reward = None if config.reward is None else Reward(config.reward, config.discount)
    return EnvironmentTask(environment, reward, config.answer_tag)


def build_engine(config: EngineConfig) -> Engine:
    """The engine of a configuration: a single engine, the replicas at its addresses, or those of servers started for
    it. Classes that take a `Patience` get the one of `engine.retry`."""
    build = client_of(config)
    urls, patience = config.base_urls, config.retry.patience
    if config.replicas:
        engine = _with_servers(config, build)
    elif len(urls) > 1:
        engine = Replicas([build(url) for url in urls], placement=config.placement, names=urls, patience=patience)
    else:
        engine = build(urls[0] if urls else None)
    return logged(engine, config)


def logged(engine: Engine, config: EngineConfig) -> Engine:
    """`engine`, wrapped to keep a log if its configuration names one."""
    return engine if config.log is None else Logged(engine, Path(config.log))


def client_of(config: EngineConfig) -> Callable[[str | None], Engine]:
    """Returns a function from a server's address to the engine; None = the engine has no address."""
    options = dict(config.options)
    if config.model is not None:
        options["model"] = config.model
    options |= dict.fromkeys(plugins.options_of(plugins.find("engine", config.name), Patience), config.retry.patience)

    def build(url: str | None) -> Engine:
        address = {} if url is None else {"base_url": url}
        return plugins.whole("engine", config.name, plugins.build("engine", config.name, **options, **address))

    return build


def _with_servers(config: EngineConfig, build: Callable[[str], Engine]) -> Engine:
    """An engine whose servers start when it connects. Raises `ConfigError` for an engine that has no servers."""
    from ramify.servers.launch import Launch
    from ramify.servers.self_served import self_served

    launch = Launch.for_engine(config.name, config.model, config.server)
    return self_served(build, launch, count=config.replicas, placement=config.placement, patience=config.retry.patience)


def configured(
    preset: str | None,
    settings: Mapping[str, Any],
    *,
    engine: Engine | None = None,
    strategy: type[Strategy] | None = None,
) -> RunConfig:
    """A config from a preset and keyword settings, in which double underscores stand for dots.

    A preset is made small only for the built-in model, not for another engine passed here. A strategy passed here uses
    the `strategy.options` in `settings` and none of the preset's.
    """
    flags: dict[str, Any] = {
        name.replace("__", "."): str(v) if isinstance(v, Path) else v for name, v in settings.items()
    }
    options = {} if strategy is None else flags.pop("strategy.options", {})
    is_small = False if engine is not None and engine.capabilities.name != BUILTIN else None
    config = resolve(preset=preset, flags=flags, is_small=is_small).config
    if strategy is None:
        return config
    return replace(
        config, strategy=StrategyConfig(name=f"{strategy.__module__}:{strategy.__qualname__}", options=options)
    )
