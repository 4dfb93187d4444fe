"""Folder: a run on disk: begun or resumed, divided into shards or not.

A divided run has the same trees as an undivided one: indices, seeds and shares of the run's limits are those of the
whole run. Limits on parallel work (`max_trees`, `tools.max_parallel`) are divided among the shards that grow at the
same time. Each shard counts its own faults and retries (`max_failed_share`, `engine.retry`).
"""

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Final

import msgspec

from ramify.config.configure import from_toml, to_toml
from ramify.config.run_config import RunConfig
from ramify.core.errors import ConfigError, EnginesDown, RamifyError, StoreError
from ramify.core.problem import Problem
from ramify.core.shard import WHOLE, Portion, Shard
from ramify.runner import loop
from ramify.runner.build import Measured, prepared_run, problems_of
from ramify.runner.deadline import finished
from ramify.runner.events import Noticed, Observer, Resumed, TailCut
from ramify.runner.inputs import check_inputs, inputs_of, remarks
from ramify.runner.log import RunLog
from ramify.runner.permission import check_permitted, is_signed_here, signed, unsigned_reason
from ramify.runner.prepared import Prepared
from ramify.runner.recorder import Recorder
from ramify.runner.report import RunReport
from ramify.runner.run import Run
from ramify.runner.scheduler import TooManyFailures
from ramify.runner.tools import isolation_of
from ramify.store.commit import Writing
from ramify.store.journal import accepted_in, damaged_header, is_begun
from ramify.store.layout import JOURNAL, damaged_layout, is_sharded, shard_of, shard_path
from ramify.store.plain_file import refuse_link
from ramify.store.records import Accepted, Header, ReadingValue, ShardValue, WeightsValue
from ramify.store.replay import Replayed, replay
from ramify.store.rewind import finish_rewind
from ramify.store.shards import ShardedFolder
from ramify.store.store import FolderStore, SavedRun, header_and_config, refuse_occupied
from ramify.store.take_back import take_back_failures
from ramify.version import __version__

REQUESTS: Final = "(the requests of a gateway, which its journals hold)"
"""The question of a gateway's configuration: its problems come over HTTP."""


def begin(
    config: RunConfig, path: Path, *, observers: Iterable[Observer] = (), measured: Measured | None = None
) -> RunReport:
    """Grow a run into the new folder `path`. Before anything starts, raises `ConfigError`, `StoreError`, or
    `EngineError` if a server does not answer; then no folder is created."""
    return loop.run(_begin(config, path, observers, measured))


def resume(
    path: Path,
    *,
    observers: Iterable[Observer] = (),
    is_trusted: bool = False,
    accept: Collection[str] = (),
) -> RunReport:
    """Continue a run that was killed or interrupted. Recorded steps are not generated again. This process alone
    finishes a divided run.

    `accept`: inputs that may differ from those that the run began with (`runner/inputs.py`). Raises `StoreError` if
    others do, and, before anything of it is loaded, if this user did not begin the run on this machine and it is not
    trusted.
    """
    finish_rewind(path)
    observers = list(observers)
    if (told := check_permitted(path, is_trusted=is_trusted)) is not None:
        notice(told, observers)
    if is_sharded(path):
        return loop.run(grow_here(path, observers=observers, accept=accept))
    return loop.run(grow_on(path, observers, accept=accept))


async def _begin(config: RunConfig, path: Path, observers: Iterable[Observer], measured: Measured | None) -> RunReport:
    refuse_occupied(path)
    return await grow_new(Run(prepared_run(config, measured=measured)), path, observers)


async def grow_new(run: Run, path: Path, observers: Iterable[Observer], *, text: str | None = None) -> RunReport:
    """Grow `run` into the new folder `path`, and close it. `text` is the configuration to record; None = the run's.

    The folder is created after all engines and tools have answered. If a run cannot start, no folder is created.
    """
    prepared, observers = run.prepared, list(observers)
    config, writing = text or to_toml(prepared.config), Writing(durability=prepared.config.durability)
    header = header_of(prepared) if text is not None else with_inputs(prepared)
    try:
        await run.connect()
        store = FolderStore.create(path, signed(header, config), config, writing=writing)
    except BaseException:
        await finished(run.close())
        raise
    if text is None and (told := unsigned_reason()) is not None:
        notice(told, observers)
    for remark in run.toolbox.unresumable():
        notice(remark, observers)
    return await _grow(run, store, observers, known={})


async def grow_on(
    path: Path,
    observers: Iterable[Observer],
    *,
    config: RunConfig | None = None,
    portion: Portion | None = None,
    accept: Collection[str] = (),
    prepared: Callable[[SavedRun], Prepared] | None = None,
) -> RunReport:
    """Continue the run, or the shard of one, in the folder `path`. `config` replaces the recorded configuration,
    `portion` the problems it would make, `prepared` how its parts are made. `accept` as in `resume`."""
    observers = list(observers)
    config = config or from_toml(header_and_config(path)[1])
    if config.service is not None:
        raise ConfigError(f"{path} is a rollout service's, which its trainer opens again: see docs/guides/service.md")
    if config.data.questions == (REQUESTS,):
        raise ConfigError(
            f"{path} is a gateway's: nobody waits for its unfinished trees; `ramify show {path}` reads it"
        )
    store, saved = FolderStore.resume(path, writing=Writing(durability=config.durability))
    try:
        made = prepared(saved) if prepared else prepared_run(config, portion, shard=shard_of(saved.header))
        run = Run(made)
        refuse_other_weights(saved.header, header_of(run.prepared))
        if portion is None:
            _settle_inputs(store, saved, run.prepared, accept=accept)
            for remark in remarks(saved.header):
                notice(remark, observers)
        known = replay(saved.records, run.prepared.codec, run.prepared.rules)
        if saved.is_header_damaged:
            notice(damaged_header(path / JOURNAL), observers)
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
    try:
        with closing(store), closing(RunLog(store.log_path)) as log:
            try:
                observed = [Recorder(store).observe, log.observe, *observers]
                return await run.grow(observed, replayed=known, keep_up=store.room)
            finally:
                await finished(run.close())
    except (EnginesDown, TooManyFailures) as error:
        _take_back(store.path, error)
        raise


def _take_back(path: Path, error: RamifyError) -> None:
    """Have what the engines failed asked for again by a resume. If the disk is full, `error` says so."""
    try:
        num_commands = take_back_failures(path)
    except StoreError as fault:
        error.args = (f"{error}; what the engines failed stays failed: {fault}",)
    else:
        again = f"; a resume asks again for the {num_commands} commands that the engines failed"
        error.args = (f"{error}{again if num_commands else ''}",)


def notice(what: str, observers: Iterable[Observer]) -> None:
    """Tell the observers of a run something that people should know."""
    for observer in observers:
        observer(Noticed(what))


def header_of(run: Prepared) -> Header:
    """The first record of a run's journal."""
    named = [(run.engine, run.codec)]
    named += [(run.engines[run.config.actions[a].engine], codec) for a, codec in sorted(run.rules.codecs.items())]
    return Header(
        library=__version__,
        config_hash="",
        weights=tuple(WeightsValue(engine.capabilities.name, codec.name, codec.sha256) for engine, codec in named),
        seed=run.config.seed,
        delivery=run.config.delivery,
        isolation=isolation_of(run.tools),
        created=time.time(),
        shard=None if (shard := run.portion.shard) == WHOLE else ShardValue(index=shard.index, count=shard.count),
        reading=ReadingValue(
            format=type(run.format).__name__,
            stops=run.format.stops,
            judges=tuple(sorted(run.rules.codecs)),
            is_text=not run.codec.is_exact,
            post_hoc_reasons=run.traits.post_hoc_reasons,
            has_post_hoc_rule=run.traits.post_hoc is not None,
            planned_leaves=run.traits.planned_leaves,
        ),
    )


def with_inputs(run: Prepared) -> Header:
    """The first record of the journal of a whole run."""
    return msgspec.structs.replace(header_of(run), inputs=inputs_of(run.config, run.problems))


def _settle_inputs(store: FolderStore, saved: SavedRun, run: Prepared, *, accept: Collection[str]) -> None:
    """Refuse inputs that differ from the recorded ones, or record that they are accepted. Mutates `saved.records`."""
    if saved.header.inputs is None:
        return
    before = [record.inputs for record in saved.records if isinstance(record, Accepted)]
    accepted = check_inputs(
        store.path,
        before[-1] if before else saved.header.inputs,
        inputs_of(run.config, run.problems),
        is_own=is_signed_here(saved.header, saved.config),
        accept=accept,
    )
    if accepted is not None:
        store.append(accepted)
        store.sync()
        saved.records.append(accepted)


def refuse_other_weights(recorded: Header, now: Header) -> None:
    if recorded.weights != now.weights:
        raise StoreError(f"the run was begun with {recorded.weights} and this would go on with {now.weights}")


# -- runs divided by problem ------------------------------------------------------------------------------------------


async def checked_start(config: RunConfig) -> tuple[Header, str, Sequence[Problem]]:
    """What is needed to begin a divided run: its header, the text of its configuration and all its problems. Nothing is
    grown, but all engines and tools are asked. Raises as `begin`."""
    run = Run(prepared_run(config))
    try:
        await run.connect()
        text = to_toml(run.prepared.config)
        return signed(with_inputs(run.prepared), text), text, run.prepared.problems
    finally:
        await finished(run.close())


async def grow_shard(
    path: Path, portion: Portion, *, observers: Iterable[Observer] = (), num_at_once: int = 1
) -> RunReport:
    """Grow one shard of the run at `path` to its end, from wherever it stands. `num_at_once` shards grow at the same
    time.

    Raises `FolderBusy` if another process grows it.
    """
    folder = shard_path(path, portion.shard.index)
    refuse_link(folder)
    text = header_and_config(path)[1]
    config = dealt(from_toml(text), num_at_once)
    finish_rewind(folder)
    if is_begun(folder / JOURNAL):
        return await grow_on(folder, observers, config=config, portion=portion)
    return await grow_new(Run(prepared_run(config, portion)), folder, observers, text=text)


def settle_shards(
    folder: ShardedFolder, config: RunConfig, problems: Sequence[Problem], *, accept: Collection[str]
) -> None:
    """Refuse inputs of a divided run that differ from the recorded ones, or record in every shard that they are
    accepted."""
    if folder.header.inputs is None:
        return
    now, is_own = inputs_of(config, problems), is_signed_here(folder.header, folder.config)
    for shard in folder.shards:
        path = shard_path(folder.path, shard.index)
        has_begun = is_begun(path / JOURNAL)
        before = [record.inputs for record in accepted_in(path / JOURNAL)] if has_begun else []
        known = before[-1] if before else folder.header.inputs
        accepted = check_inputs(folder.path, known, now, is_own=is_own, accept=accept)
        if accepted is not None:
            with closing(_shard_store(folder, shard, has_begun=has_begun)) as store:
                store.append(accepted)


def _shard_store(folder: ShardedFolder, shard: Shard, *, has_begun: bool) -> FolderStore:
    """The folder of a shard, open for writing; begun if it was not."""
    path = shard_path(folder.path, shard.index)
    if has_begun:
        return FolderStore.resume(path)[0]
    value = ShardValue(index=shard.index, count=shard.count)
    header = msgspec.structs.replace(folder.header, shard=value, inputs=None)
    return FolderStore.create(path, signed(header, folder.config), folder.config)


async def grow_here(path: Path, *, observers: Iterable[Observer] = (), accept: Collection[str] = ()) -> RunReport:
    """Finish the divided run at `path` in this process, one shard after the other. `accept` as in `resume`."""
    began, observers = time.monotonic(), list(observers)
    with closing(ShardedFolder.open(path)) as folder:
        config = from_toml(folder.config)
        problems = problems_of(config)
        settle_shards(folder, config, problems, accept=accept)
        for remark in [*damaged_layout(path), *remarks(folder.header)]:
            notice(remark, observers)
        reports = [await grow_shard(path, shard.of(problems), observers=observers) for shard in folder.shards]
    return RunReport.merged(reports, seconds=time.monotonic() - began)


def dealt(config: RunConfig, num_at_once: int) -> RunConfig:
    """The configuration for one of `num_at_once` processes: its part of the limits on parallel work, at least 1."""
    tools = replace(config.tools, max_parallel=max(1, config.tools.max_parallel // num_at_once))
    return replace(config, max_trees=max(1, config.max_trees // num_at_once), tools=tools)
