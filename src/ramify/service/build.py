"""Build: makes what a service needs before it starts: its configuration, its problems, its engines and its run.

It only decides and constructs; it connects and starts nothing.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import replace

from rich.console import Console

from ramify.config.run_config import EngineConfig, RunConfig
from ramify.config.service_config import SLIMES_SFT, ServiceConfig
from ramify.core.engine import Engine
from ramify.core.errors import ConfigError
from ramify.core.limits import Limits
from ramify.core.problem import Problem
from ramify.core.task import Task
from ramify.engines.gate import Gate
from ramify.runner import build
from ramify.runner.run import Run
from ramify.servers.launch import Launch
from ramify.servers.pool.cluster import clustered
from ramify.servers.pool.config import PoolConfig
from ramify.servers.pool.engines import engine_of, free_here, this_machine
from ramify.servers.pool.plan import plan
from ramify.service.service_journal import ServiceJournal
from ramify.tasks.data import read_conversations, read_problems
from ramify.tasks.data_row import RowFault
from ramify.telemetry.telemetry import Telemetry


def settled(config: RunConfig | None, journal: ServiceJournal) -> RunConfig:
    """The configuration of a service. Raises `ConfigError` if there is none, if the folder records another one, or if
    it sets a limit that an endless service cannot have."""
    recorded = journal.config()
    if config is None:
        journal.check_permitted()
        config = recorded
    if config is None:
        raise ConfigError(
            f"{journal.path} holds no service; give a configuration to begin one, on the command line with -c FILE"
        )
    if recorded is not None and recorded.service is None:
        raise ConfigError(f"{journal.path} holds a run that is no service; name a new folder")
    config = replace(config, service=config.service or ServiceConfig())
    if recorded is not None and recorded != config:
        raise ConfigError(
            f"{journal.path} was begun with another configuration: leave yours out to go on, or choose a new folder"
        )
    if config.run_limits != Limits() or config.limits.seconds is not None:
        raise ConfigError(
            "a service has no end, so it takes no run_limits, and its trees wait while weights are loaded, so it takes "
            "no limits.seconds: leave both out; the other limits of a tree apply"
        )
    return config


def assembled(
    config: RunConfig,
    *,
    engine: Engine | None,
    task: Task | None,
    rewarded: Callable[[Task], Task],
    telemetry: Telemetry | None,
    console: Console,
) -> tuple[Run, Gate]:
    """The run of a service, and the gate in front of its policy's engine.

    `engine` and `task` None = those of the configuration. `rewarded` may replace the judge. `console` shows the bad
    rows of a data file. Raises `ConfigError`.
    """
    service = config.service
    assert service is not None
    gates: list[Gate] = []

    def gated(engine: Engine) -> Gate:
        gates.append(Gate(engine))
        return gates[0]

    measured = None if telemetry is None else telemetry.in_front_of
    if engine is None and service.pool is not None and service.debug != "train_only":
        engine = pooled(config.engine, service.pool)
    if engine is not None and measured is not None:
        engine = measured(engine, config.engine.model or "")
    task = rewarded(task or build.build_task(config))
    problems, skipped = _problems(config, task)
    for fault in skipped:
        console.print(f"skipped: {fault}", markup=False)
    prepared = build.prepared_run(config, problems, engine=engine, task=task, in_front=gated, measured=measured)
    return Run(prepared), gates[0]


def pooled(config: EngineConfig, pool: PoolConfig) -> Engine:
    """The engines of a pool as one engine, on this machine or on a Ray cluster; it joins the cluster when it connects.
    Raises `ConfigError` if the engines do not fit on this machine, or if the configuration already names servers."""
    if config.replicas or config.base_url is not None:
        raise ConfigError(
            f"service.pool starts the engines, and engine.replicas = {config.replicas!r}, engine.base_url = "
            f"{config.base_url!r} name others: leave one of them out"
        )
    launch = Launch.for_engine(config.name, config.model, config.server)
    client, placement, patience = build.client_of(config), config.placement, config.retry.patience
    if pool.is_on_cluster:
        engine = clustered(client, pool, launch, placement=placement, patience=patience)
    else:
        planned = plan(pool, [this_machine(pool, ours=os.environ)], free=free_here)
        engine = engine_of(client, planned, launch, placement=placement, patience=patience)
    return build.logged(engine, config)


def _problems(config: RunConfig, task: Task) -> tuple[Sequence[Problem], Sequence[RowFault]]:
    """All problems of a data file and the bad rows that were skipped, or as many of the task's own problems as were
    asked for. slime's SFT reads written conversations."""
    if config.service is not None and config.service.rollout_function == SLIMES_SFT:
        return read_conversations(config.data)
    if config.data.path is not None or config.data.questions:
        return read_problems(config.data)
    return task.problems(config.task.split, config.prompts, config.seed), ()
