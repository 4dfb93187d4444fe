"""Pooled: the engine of a service whose servers the service starts itself, on this machine or on a Ray cluster."""

import os

from ramify.config.run_config import EngineConfig
from ramify.core.engine import Engine
from ramify.core.errors import ConfigError
from ramify.runner.build import client_of, logged
from ramify.servers.launch import Launch
from ramify.servers.pool.cluster import clustered
from ramify.servers.pool.config import PoolConfig
from ramify.servers.pool.engines import engine_of, free_here, this_machine
from ramify.servers.pool.plan import plan


def pooled(config: EngineConfig, pool: PoolConfig) -> Engine:
    """The engines of a pool as one engine: on this machine, or on a Ray cluster, which is joined when it connects.
    Raises `ConfigError` where they do not fit on this machine and where the configuration names servers already."""
    if config.replicas or config.base_url is not None:
        raise ConfigError(
            f"service.pool starts the engines, and engine.replicas = {config.replicas!r}, engine.base_url = "
            f"{config.base_url!r} name others: leave one of them out"
        )
    launch = Launch.for_engine(config.name, config.model, config.server)
    build, placement, patience = client_of(config), config.placement, config.retry.patience
    if pool.is_on_cluster:
        engine = clustered(build, pool, launch, placement=placement, patience=patience)
    else:
        planned = plan(pool, [this_machine(pool, ours=os.environ)], free=free_here)
        engine = engine_of(build, planned, launch, placement=placement, patience=patience)
    return logged(engine, config)
