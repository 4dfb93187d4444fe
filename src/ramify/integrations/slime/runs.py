"""Slime runs: the runs of a process that stay open between a trainer's calls, with their engines' connections.

There is one run per configuration text and reward setting. What changes from call to call (groups, batch) is not part
of a run. Used on one event loop only, and by one call at a time.
"""

import asyncio
import atexit
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

from ramify.config.configure import to_toml
from ramify.config.run_config import EngineConfig, RunConfig
from ramify.core.engine import Engine
from ramify.integrations.background_loop import background_loop
from ramify.integrations.slime.args import SlimeArgs
from ramify.integrations.slime.rewards import rewarded
from ramify.integrations.trainer_config import task_of
from ramify.runner.build import build_engine
from ramify.runner.prepared import prepare
from ramify.runner.run import Run

CLOSE_S: Final = 5.0
"""At exit, the process waits at most this long for connections to close."""


@dataclass(frozen=True, slots=True)
class Standing:
    """A run that is kept between calls."""

    run: Run
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


_STANDING: dict[tuple[str, str | None, str | None], Standing] = {}
_ENGINES: dict[str, Engine] = {}
"""By the text of their configuration: runs with the same model share an engine."""


@asynccontextmanager
async def standing_run(config: RunConfig, args: SlimeArgs) -> AsyncIterator[Run]:
    """The run of `config`, judged as `args` say, for one caller at a time. Raises `ConfigError`."""
    key = to_toml(config), args.rm_path, args.rm_type
    if key not in _STANDING:
        _STANDING[key] = Standing(_made(config, args))
    standing = _STANDING[key]
    async with standing.lock:
        yield standing.run


async def close_runs() -> None:
    """Close all runs and engines; the next call makes new ones."""
    engines, runs = list(_ENGINES.values()), [standing.run for standing in _STANDING.values()]
    _STANDING.clear()
    _ENGINES.clear()
    await asyncio.gather(*(run.prepared.judging.close() for run in runs), *(engine.close() for engine in engines))


def _made(config: RunConfig, args: SlimeArgs) -> Run:
    engines = {name: _engine(each) for name, each in config.engines.items()}
    task, policy = rewarded(task_of(config), args), _engine(config.engine)
    return Run(prepare(config, task=task, engine=policy, engines=engines, problems=()))


def _engine(config: EngineConfig) -> Engine:
    return _ENGINES.setdefault(repr(config), _ENGINES.get(repr(config)) or build_engine(config))


@atexit.register
def _close_at_exit() -> None:
    """Close the runs before the daemon thread of their loop ends with the process."""
    if _STANDING:
        with suppress(TimeoutError):
            asyncio.run_coroutine_threadsafe(close_runs(), background_loop()).result(CLOSE_S)
