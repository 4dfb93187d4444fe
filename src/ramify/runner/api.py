"""The library: grow trees from inside anybody's process, or as a run on disk.

`rollout` returns trees and rows with nothing on disk; `steps` yields events and can stop a tree; `begin`, `resume` and
`Saved` are runs in a folder, which the command line is a thin shell over.
"""

import asyncio
import heapq
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from operator import itemgetter
from pathlib import Path
from typing import Any

import ramify
from ramify import plugins
from ramify.config.configure import BUILTIN, from_toml, resolve, to_toml
from ramify.config.run_config import EngineConfig, RunConfig, StrategyConfig
from ramify.core.codec import Codec
from ramify.core.engine import Engine
from ramify.core.errors import ConfigError, RamifyError, StoreError
from ramify.core.growth import GrowthRules
from ramify.core.problem import Problem
from ramify.core.shard import WHOLE, Portion, Shard
from ramify.core.strategy import Strategy
from ramify.core.task import Task
from ramify.core.tree import Tree
from ramify.credit import PostHocRule
from ramify.edge.error_text import error_text
from ramify.edge.patience import Patience
from ramify.engines.fleet.replicas import Replicas
from ramify.engines.logged import Logged
from ramify.rows.row import Row
from ramify.runner import loop
from ramify.runner.answers import Answering, Answers
from ramify.runner.deadline import finished
from ramify.runner.events import Event, Observer, Resumed, TailCut, TreeClosed
from ramify.runner.log import RunLog
from ramify.runner.recorder import Recorder
from ramify.runner.report import RunReport
from ramify.runner.rows import tree_rows
from ramify.runner.run import Run
from ramify.runner.tools import isolation_of
from ramify.store.commit import Writing
from ramify.store.layout import Part, is_sharded, parts, records, shard_of
from ramify.store.records import Header, ShardValue, Weights
from ramify.store.replay import Replayed, replay, replay_each
from ramify.store.store import FolderStore, header_and_config, refuse_occupied
from ramify.tasks.data import DataFile

Measured = Callable[[Engine, str], Engine]
"""Puts something between an engine, whose server calls its model so, and what tries its requests again: an engine that
is the same but for being watched."""


@dataclass(frozen=True, slots=True)
class Rollout:
    """What a rollout came to: its trees in order of their problems, and the report."""

    config: RunConfig
    trees: tuple[Tree, ...]
    report: RunReport
    answering: Answering
    unpredictable: tuple[str, ...] = ()
    """Why forks of the strategy depend on tokens already drawn; empty = exact credits may be used."""
    post_hoc: PostHocRule | None = None
    """The rule by which the strategy forks finished paths; None = it has none that balanced shares could be made of."""

    def rows(self, *, per_tree: int | None = None) -> list[Row]:
        """One row a kept leaf, each sampled token once, by the configured credit; with `per_tree`, exactly that many of
        each tree. Raises `ExportError`."""
        return [
            row
            for tree in self.trees
            for row in tree_rows(tree, self.config, self.unpredictable, post_hoc=self.post_hoc, per_tree=per_tree)
        ]

    def answers(self) -> list[Answers]:
        """What each tree answers, in order of their problems."""
        return [self.answering.of(tree) for tree in self.trees]


def assemble(
    config: RunConfig,
    problems: Sequence[Problem | str] | Portion | None = None,
    *,
    engine: Engine | None = None,
    task: Task | None = None,
    strategy: type[Strategy] | None = None,
    in_front: Callable[[Engine], Engine] | None = None,
    measured: Measured | None = None,
    shard: Shard = WHOLE,
) -> Run:
    """Build a run's parts. Objects win over what the config names; `in_front` is as of `Run`, `measured` is asked for
    each engine that is built here. Of the problems it grows those of `shard`, or the portion it is given. Raises
    `ConfigError`."""
    task = task or build_task(config)
    portion = problems if isinstance(problems, Portion) else shard.of(_named(problems, task, config))
    build = build_engine if measured is None else lambda each: measured(build_engine(each), each.model or "")
    engines = {name: build(each) for name, each in config.engines.items()}
    policy = engine or build(config.engine)
    return Run(
        config,
        task=task,
        engine=policy,
        engines=engines,
        problems=portion,
        strategy=strategy,
        in_front=in_front,
    )


def problems_of(config: RunConfig) -> Sequence[Problem]:
    """All problems of a run. Raises `ConfigError`."""
    return _problems_of(build_task(config), config)


def _named(problems: Sequence[Problem | str] | None, task: Task, config: RunConfig) -> Sequence[Problem]:
    """Problems, of bare questions too; None = as many of the task's as the configuration says."""
    if problems is None:
        return _problems_of(task, config)
    return [p if isinstance(p, Problem) else Problem(f"question-{i}", p) for i, p in enumerate(problems)]


def _problems_of(task: Task, config: RunConfig) -> Sequence[Problem]:
    """The task's problems, or those of a data file. Boundary to plug-in code: what it raises is a `ConfigError`."""
    has_own = config.data.path is not None or bool(config.data.questions)
    source = DataFile(config.data) if has_own and not isinstance(task, DataFile) else task
    try:
        return source.problems(config.task.split, config.prompts, config.seed)
    except RamifyError:
        raise
    except Exception as error:
        raise ConfigError(f"task {config.task.name!r} has no problems to give: {error_text(error)}") from error


def build_task(config: RunConfig) -> Task:
    options = dict(config.task.options)
    if config.task.name == "data":
        options["data"] = config.data
    return plugins.build("task", config.task.name, **options)


def build_engine(config: EngineConfig) -> Engine:
    """The engine of a configuration: one, the replicas at its addresses, or those of servers started for it. Classes
    that take a `Patience` are handed that of `engine.retry`."""
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
    """`engine`, keeping the log that its configuration names, if it names one."""
    return engine if config.log is None else Logged(engine, Path(config.log))


def client_of(config: EngineConfig) -> Callable[[str | None], Engine]:
    """What makes the engine of a configuration by the address of its server; None = it has none."""
    options = dict(config.options)
    if config.model is not None:
        options["model"] = config.model
    options |= dict.fromkeys(plugins.options_of(plugins.find("engine", config.name), Patience), config.retry.patience)

    def build(url: str | None) -> Engine:
        address = {} if url is None else {"base_url": url}
        return plugins.build("engine", config.name, **options, **address)

    return build


def _with_servers(config: EngineConfig, build: Callable[[str], Engine]) -> Engine:
    """An engine whose servers start when it connects. Raises `ConfigError` for one that has no servers."""
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
    """A config from a preset and keyword settings, whose double underscores stand for dots.

    A preset is not made small for an engine handed in, but for the built-in model's. A strategy handed in takes the
    `strategy.options` that were given with it, and none of the preset's.
    """
    flags = {name.replace("__", "."): value for name, value in settings.items()}
    options = {} if strategy is None else flags.pop("strategy.options", {})
    is_small = False if engine is not None and engine.capabilities.name != BUILTIN else None
    config = resolve(preset=preset, flags=flags, is_small=is_small).config
    if strategy is None:
        return config
    return replace(
        config, strategy=StrategyConfig(name=f"{strategy.__module__}:{strategy.__qualname__}", options=options)
    )


async def rollout(
    problems: Sequence[Problem | str] | None = None,
    *,
    preset: str | None = None,
    config: RunConfig | None = None,
    engine: Engine | None = None,
    task: Task | None = None,
    strategy: type[Strategy] | None = None,
    observers: Iterable[Observer] = (),
    **settings: Any,
) -> Rollout:
    """Grow one tree a problem and return them.

    `problems` are problems or questions; None = as many of the task's own as `config.prompts` says. `engine`, `task`
    and `strategy` take objects where the config names built-in ones. `settings` are paths of the config with `__` for
    the dot: `strategy__options={"n": 4}`, `limits__decode=224`. An engine handed in stays open. Raises `ConfigError`
    before anything starts.
    """
    config = config or configured(preset, settings, engine=engine, strategy=strategy)
    run = assemble(config, problems, engine=engine, task=task, strategy=strategy)
    trees: dict[int, Tree] = {}

    def keep(event: Event) -> None:
        if isinstance(event, TreeClosed):
            trees[event.index] = event.tree

    try:
        report = await run.grow([*observers, keep])
    finally:
        await finished(run.close() if engine is None else run.close_others())
    grown = tuple(trees[index] for index in sorted(trees))
    return Rollout(run.config, grown, report, run.answering, run.unpredictable, run.post_hoc)


def rollout_sync(problems: Sequence[Problem | str] | None = None, **settings: Any) -> Rollout:
    """`rollout` for code without an event loop."""
    return loop.run(rollout(problems, **settings))


def grow(config: RunConfig, problems: Sequence[Problem], *, observers: Iterable[Observer]) -> RunReport:
    """Grow a run of these problems in memory; nothing is kept but what the observers keep."""
    return loop.run(_observed(config, problems, observers))


async def _observed(config: RunConfig, problems: Sequence[Problem], observers: Iterable[Observer]) -> RunReport:
    run = assemble(config, problems)
    try:
        return await run.grow(observers)
    finally:
        await finished(run.close())


@dataclass(frozen=True, slots=True)
class Watched:
    """An event of a running rollout, and the means to stop the tree it is about."""

    event: Event
    stop: Callable[[], None]
    """Stop growing this tree; the others go on."""


async def steps(
    problems: Sequence[Problem | str] | None = None,
    *,
    preset: str | None = None,
    config: RunConfig | None = None,
    engine: Engine | None = None,
    task: Task | None = None,
    strategy: type[Strategy] | None = None,
    **settings: Any,
) -> AsyncIterator[Watched]:
    """Grow trees and yield what happens, in order. Leaving the loop cancels the rest. Arguments as in `rollout`."""
    config = config or configured(preset, settings, engine=engine, strategy=strategy)
    run = assemble(config, problems, engine=engine, task=task, strategy=strategy)
    events: asyncio.Queue[Event | None] = asyncio.Queue()
    growing = asyncio.create_task(run.grow([events.put_nowait]))
    growing.add_done_callback(lambda _: events.put_nowait(None))
    try:
        while (event := await events.get()) is not None:
            yield Watched(event, lambda index=event.index: run.stop(index))
        await growing
    finally:
        growing.cancel()
        try:
            await asyncio.gather(growing, return_exceptions=True)
        finally:
            await finished(run.close() if engine is None else run.close_others())


# -- runs on disk ----------------------------------------------------------------------------------------------------


def begin(
    config: RunConfig, path: Path, *, observers: Iterable[Observer] = (), measured: Measured | None = None
) -> RunReport:
    """Grow a run into the new folder `path`. Raises `ConfigError`, `StoreError`, or `EngineError` where a server does
    not answer, before anything starts; then there is no folder."""
    return loop.run(_begin(config, path, observers, measured))


def resume(path: Path, *, observers: Iterable[Observer] = ()) -> RunReport:
    """Go on with a run that was killed or interrupted; nothing acknowledged is generated again. A divided run is grown
    on by this process alone."""
    if is_sharded(path):
        from ramify.sharded.grow import grow_here

        return loop.run(grow_here(path, observers=observers))
    return loop.run(grow_on(path, observers))


async def _begin(config: RunConfig, path: Path, observers: Iterable[Observer], measured: Measured | None) -> RunReport:
    refuse_occupied(path)
    return await grow_new(assemble(config, measured=measured), path, observers)


async def grow_new(run: Run, path: Path, observers: Iterable[Observer], *, text: str | None = None) -> RunReport:
    """Grow `run` into the new folder `path`, and close it. `text` is the configuration to record; None = the run's.

    The folder is made when everybody who is needed has answered: a run that cannot start leaves none.
    """
    header, writing = header_of(run), Writing(durability=run.config.durability)
    try:
        await run.connect()
        store = FolderStore.create(path, header, text or to_toml(run.config), writing=writing)
    except BaseException:
        await finished(run.close())
        raise
    return await _grow(run, store, observers, known={})


async def grow_on(
    path: Path, observers: Iterable[Observer], *, config: RunConfig | None = None, portion: Portion | None = None
) -> RunReport:
    """Go on with the run, or the shard of one, in the folder `path`. `config` stands for the recorded one, `portion`
    for the problems that it would make."""
    config = config or from_toml(header_and_config(path)[1])
    if config.service is not None:
        raise ConfigError(f"{path} is a rollout service's, which its trainer opens again: see docs/service.md")
    store, saved = FolderStore.resume(path, writing=Writing(durability=config.durability))
    try:
        run = assemble(config, portion, shard=shard_of(saved.header))
        refuse_other_weights(saved.header, header_of(run))
        known = replay(saved.records, run.codec, run.rules)
        observers = list(observers)
        for observer in observers:
            if saved.torn is not None:
                observer(TailCut(str(saved.torn)))
            observer(Resumed(sum(tree.is_closed for tree in known.values())))
    except BaseException:
        store.close()
        raise
    return await _grow(run, store, observers, known=known)


async def _grow(
    run: Run, store: FolderStore, observers: Iterable[Observer], *, known: Mapping[int, Replayed]
) -> RunReport:
    with closing(store), closing(RunLog(store.log_path)) as log:
        try:
            observed = [Recorder(store).observe, log.observe, *observers]
            return await run.grow(observed, replayed=known, keep_up=store.room)
        finally:
            await finished(run.close())


def header_of(run: Run) -> Header:
    """The first record of a run's journal."""
    named = [(run.engine, run.codec)]
    named += [(run.engines[run.config.actions[a].engine], codec) for a, codec in sorted(run.rules.codecs.items())]
    return Header(
        library=ramify.__version__,
        config_hash="",
        weights=tuple(Weights(engine.capabilities.name, codec.name, codec.sha256) for engine, codec in named),
        seed=run.config.seed,
        delivery=run.config.delivery,
        isolation=isolation_of(run.tools),
        created=time.time(),
        shard=None if (shard := run.portion.shard) == WHOLE else ShardValue(index=shard.index, count=shard.count),
    )


def refuse_other_weights(recorded: Header, now: Header) -> None:
    if recorded.weights != now.weights:
        raise StoreError(f"the run was begun with {recorded.weights} and this would go on with {now.weights}")


def _refuse_other_judges(recorded: Header, now: Header) -> None:
    """Of judges with tokenizers of their own: what they said could not be read. A tree's own is in its record."""
    was, is_now = ([weights.codec_sha256 for weights in header.weights[1:]] for header in (recorded, now))
    if was != is_now:
        raise StoreError(f"the run was begun with {recorded.weights} and would be read with {now.weights}")


@dataclass(frozen=True, slots=True)
class Saved:
    """A run folder, read only: its configuration, its trees one by one, its rows."""

    path: Path
    config: RunConfig
    codec: Codec
    rules: GrowthRules
    answering: Answering
    unpredictable: tuple[str, ...] = ()
    post_hoc: PostHocRule | None = None

    @classmethod
    def open(cls, path: Path) -> "Saved":
        """Raises `StoreError` if `path` is no readable run."""
        header, text = header_and_config(path)
        config = from_toml(text)
        run = assemble(replace(config, engine=replace(config.engine, log=None)))
        _refuse_other_judges(header, header_of(run))
        return cls(path, config, run.codec, run.rules, run.answering, run.unpredictable, run.post_hoc)

    def trees(self) -> Iterator[Tree]:
        """Finished trees in order of their problems."""
        shards = map(self._trees_of, parts(self.path))
        return (tree for _, tree in heapq.merge(*shards, key=itemgetter(0)))

    def _trees_of(self, part: Part) -> Iterator[tuple[int, Tree]]:
        """Finished trees of one journal in order of their problems, with their indices."""
        early: dict[int, Tree] = {}
        wanted = part.shard.index
        for replayed in replay_each(records(part), self.codec, self.rules):
            if replayed.is_closed:
                early[replayed.index] = replayed.tree
            while wanted in early:
                yield wanted, early.pop(wanted)
                wanted += part.shard.count
        yield from sorted(early.items())

    def rows(self, *, per_tree: int | None = None) -> Iterator[Row]:
        """Rows of all finished trees, in canonical order; with `per_tree`, exactly that many of each."""
        for tree in self.trees():
            yield from tree_rows(tree, self.config, self.unpredictable, post_hoc=self.post_hoc, per_tree=per_tree)

    def answers(self) -> Iterator[Answers]:
        """What each finished tree answers, in order of their problems."""
        return (self.answering.of(tree) for tree in self.trees())
