"""Slime runs: the runs of a process that outlive the calls of a trainer, with their engines' connections.

One for every configuration, found again by its text; what a call changes (its groups, its batch) is never part of it.
Used on one event loop only, and by one call at a time.
"""

import asyncio
import atexit
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Final

from ramify.config.configure import to_toml
from ramify.config.run_config import EngineConfig, RunConfig
from ramify.core.engine import Engine
from ramify.core.task import Task
from ramify.integrations.slime.args import SlimeArgs
from ramify.integrations.slime.background_loop import background_loop
from ramify.integrations.slime.rewards import rewarded
from ramify.runner.build import build_engine, build_task
from ramify.runner.prepared import prepare
from ramify.runner.run import Run
from ramify.tasks.data import DataFile

LABEL: Final = "label"
"""What the trainer calls the gold answer."""
CLOSE_S: Final = 5.0
"""Longest time that the end of the process waits for connections to close."""


@dataclass(frozen=True, slots=True)
class Standing:
    """A run that is kept between calls."""

    run: Run
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


_STANDING: dict[tuple[str, str | None, str | None], Standing] = {}
_ENGINES: dict[str, Engine] = {}
"""By what their configurations say: runs of one model share it."""


@asynccontextmanager
async def standing_run(config: RunConfig, args: SlimeArgs) -> AsyncIterator[Run]:
    """The run of `config`, whose leaves are judged as `args` say; others wait for it. Raises `ConfigError`."""
    key = to_toml(config), args.rm_path, args.rm_type
    if key not in _STANDING:
        _STANDING[key] = Standing(_made(config, args))
    standing = _STANDING[key]
    async with standing.lock:
        yield standing.run


async def close_runs() -> None:
    """Close all of them; the next call makes new ones."""
    engines, runs = list(_ENGINES.values()), [standing.run for standing in _STANDING.values()]
    _STANDING.clear()
    _ENGINES.clear()
    await asyncio.gather(*(run.prepared.judging.close() for run in runs), *(engine.close() for engine in engines))


def _made(config: RunConfig, args: SlimeArgs) -> Run:
    engines = {name: _engine(each) for name, each in config.engines.items()}
    task, policy = rewarded(_task(config), args), _engine(config.engine)
    return Run(prepare(config, task=task, engine=policy, engines=engines, problems=()))


def _engine(config: EngineConfig) -> Engine:
    return _ENGINES.setdefault(repr(config), _ENGINES.get(repr(config)) or build_engine(config))


def _task(config: RunConfig) -> Task:
    """The task of the TOML. Questions are the data source's, so that of a data file needs none."""
    if config.task.name != "data":
        return build_task(config)
    data = replace(config.data, path=None, questions=("of the data source",), answer=config.data.answer or LABEL)
    return DataFile(data)


@atexit.register
def _close_at_exit() -> None:
    """The loop of a daemon thread ends with the process, so its runs are closed before."""
    if _STANDING:
        with suppress(TimeoutError):
            asyncio.run_coroutine_threadsafe(close_runs(), background_loop()).result(CLOSE_S)
