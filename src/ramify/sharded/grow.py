"""Shards: a run that is divided by problem, grown by several processes or by this one alone.

However it is divided, the trees are those of the undivided run: indices, seeds and shares of the run's limits are the
whole run's. What bounds work at one time (`max_trees`, `tools.max_parallel`) is dealt out among the shards that grow at
the same time; what a process judges by its own experience (`max_failed_share`, `engine.retry`) each shard judges alone.
"""

import time
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from ramify.config.configure import from_toml, to_toml
from ramify.config.run_config import RunConfig
from ramify.core.problem import Problem
from ramify.core.shard import Portion
from ramify.runner.api import assemble, grow_new, grow_on, header_of, problems_of
from ramify.runner.deadline import finished
from ramify.runner.events import Observer
from ramify.runner.report import RunReport
from ramify.store.journal import is_begun
from ramify.store.layout import JOURNAL, shard_path
from ramify.store.records import Header
from ramify.store.shards import ShardedFolder
from ramify.store.store import header_and_config


class Prepared(NamedTuple):
    """What a divided run is begun with."""

    header: Header
    config: str
    """The text of the resolved configuration."""
    problems: Sequence[Problem]
    """All of them."""


async def prepared(config: RunConfig) -> Prepared:
    """Check a run as its start would: everybody who is needed is asked. Raises as `api.begin`."""
    run = assemble(config)
    try:
        await run.connect()
        return Prepared(header_of(run), to_toml(run.config), run.problems)
    finally:
        await finished(run.close())


async def grow_shard(
    path: Path, portion: Portion, *, observers: Iterable[Observer] = (), num_at_once: int = 1
) -> RunReport:
    """Grow one shard of the run at `path` to its end, from wherever it stands; `num_at_once` shards grow meanwhile.

    Raises `FolderBusy` if another process grows it.
    """
    folder = shard_path(path, portion.shard.index)
    text = header_and_config(path)[1]
    config = dealt(from_toml(text), num_at_once)
    if is_begun(folder / JOURNAL):
        return await grow_on(folder, observers, config=config, portion=portion)
    return await grow_new(assemble(config, portion), folder, observers, text=text)


async def grow_here(path: Path, *, observers: Iterable[Observer] = ()) -> RunReport:
    """Grow the divided run at `path` to its end in this process, one shard after the other."""
    began = time.monotonic()
    with closing(ShardedFolder.open(path)) as folder:
        problems = problems_of(from_toml(folder.config))
        reports = [await grow_shard(path, shard.of(problems), observers=observers) for shard in folder.shards]
    return RunReport.merged(reports, seconds=time.monotonic() - began)


def dealt(config: RunConfig, num_at_once: int) -> RunConfig:
    """The configuration for one of so many processes: its part of what may be done at one time, and at least 1."""
    tools = replace(config.tools, max_parallel=max(1, config.tools.max_parallel // num_at_once))
    return replace(config, max_trees=max(1, config.max_trees // num_at_once), tools=tools)
