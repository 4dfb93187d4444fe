"""Engines: carries out a plan on this machine. It starts servers, waits for them, restarts them and stops them.

A server pool (`servers/server_pool.py`) owns everything here. A server that dies is started again with its own cards at
its own port. The engine in front of it then gets the weights that the others have before it gets requests
(`engines/fleet/replicas.py`). Refuses plans of several nodes; those are for `cluster.py`.
"""

import os
import socket
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from ramify.core.engine import Engine
from ramify.core.errors import ConfigError
from ramify.edge.patience import PATIENCE, Patience
from ramify.engines.fleet.placement import PlacementName
from ramify.servers.home import Here, Home, log_folder
from ramify.servers.launch import Launch
from ramify.servers.member import Care
from ramify.servers.pool.config import PoolConfig
from ramify.servers.pool.members import VISIBLE, member_command
from ramify.servers.pool.plan import PoolNode, PoolPlan
from ramify.servers.ports import Address
from ramify.servers.process import Command
from ramify.servers.self_served import SelfServed
from ramify.servers.server_pool import Event, ServerPool

LOOPBACK: Final = "127.0.0.1"


def this_machine(config: PoolConfig, *, ours: Mapping[str, str], host: str = LOOPBACK) -> PoolNode:
    """This machine with the cards that the engines may use: from CUDA_VISIBLE_DEVICES if it is set, else the lowest
    numbers. The trainer's cards are left out unless they are shared. Raises `ConfigError` if CUDA_VISIBLE_DEVICES names
    cards by anything but numbers."""
    first, last = config.engine_offset, config.engine_offset + config.num_gpus
    seen = ours.get(VISIBLE)
    if seen is None or not config.num_gpus:
        return PoolNode(host=host, gpus=tuple(range(first, last)))
    names = [name.strip() for name in seen.split(",") if name.strip()]
    odd = [name for name in names if not name.isdecimal()]
    if odd:
        raise ConfigError(f"{VISIBLE} = {seen!r}: {odd[0]!r} is no number; name the cards by numbers")
    return PoolNode(host=host, gpus=tuple(map(int, names[first:last])))


def free_here(host: str, first: int, count: int) -> int:
    """The first of `count` consecutive ports, `first` or above, that are free on this machine now."""
    while first + count <= 1 << 16:
        taken = [port for port in range(first, first + count) if not _is_free(host, port)]
        if not taken:
            return first
        first = taken[-1] + 1
    raise ConfigError(f"no {count} free ports beside each other on {host}; lower pool.first_port, or free some")


def servers_of(
    plan: PoolPlan,
    launch: Launch,
    *,
    logs: Path,
    ours: Mapping[str, str],
    care: Care | None = None,
    observe: Callable[[Event], None] = lambda event: None,
) -> ServerPool:
    """The engines of a plan as servers called engine-INDEX, not started yet. Their ports come from the plan; the pool
    holds its own blocks for their process groups. Raises `ConfigError` for a plan of several nodes."""
    host = _host(plan)
    by_port = {engine.head.address.port: engine for engine in plan.engines}

    def command(address: Address) -> Command:
        engine = by_port[address.port]
        return member_command(engine, engine.head, launch, ours=ours, at=address)

    for engine in plan.engines:
        command(engine.head.address)  # Raises its errors before anything is started.
    return ServerPool(
        Here(command, home=Home(logs=logs, host=host, ports=tuple(by_port)), name="engine"),
        count=len(plan.engines),
        probe=launch.probe,
        care=care or Care(start_s=launch.config.start_s),
        observe=observe,
    )


def engine_of(
    build: Callable[[str], Engine],
    plan: PoolPlan,
    launch: Launch,
    *,
    placement: PlacementName = "prefix",
    patience: Patience = PATIENCE,
    care: Care | None = None,
) -> SelfServed:
    """The engines of a plan as the replicas of one engine. They start when it connects. `build` makes the client of a
    server from its address."""

    async def pool(observe: Callable[[Event], None]) -> ServerPool:
        return servers_of(
            plan, launch, logs=log_folder(launch.config.logs), ours=os.environ, care=care, observe=observe
        )

    return SelfServed(build, pool, placement=placement, patience=patience)


def _host(plan: PoolPlan) -> str:
    """The only node of a plan. Raises `ConfigError` if there are several."""
    hosts = {member.address.host for member in plan.members}
    if len(hosts) != 1 or len(plan.members) != len(plan.engines):
        raise ConfigError(
            f"a plan of {len(plan.members)} members on {len(hosts)} nodes is no plan of one machine: place it on a "
            "cluster, or plan for one node"
        )
    return hosts.pop()


def _is_free(host: str, port: int) -> bool:
    with ExitStack() as opened:
        probe = opened.enter_context(socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET))
        try:
            probe.bind((host, port))
        except OSError:
            return False
        return True
