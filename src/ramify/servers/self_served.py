"""Self-served: an engine that starts its own servers.

The servers start when it connects and stop when it closes, however a run ends. Before that the engine has no server, so
a run can be checked, and a saved run can be read, without servers. When a server goes down, its replica is taken out of
service at once. After a restart, the new server replaces the old one, at any address, and is checked before it gets
requests (`engines/fleet/replicas.py`). Invariant: no request is answered by a restarted server that was not checked.
"""

import asyncio
import functools
import os
from collections.abc import Awaitable, Callable
from typing import Final

from ramify.core.engine import Engine, Generation, Request
from ramify.core.errors import ContractError
from ramify.edge.patience import PATIENCE, Patience
from ramify.engines.fleet.placement import PlacementName
from ramify.engines.fleet.replicas import Replicas
from ramify.engines.in_front import InFront
from ramify.servers.home import Here, Home, log_folder
from ramify.servers.installed import settled
from ramify.servers.launch import Launch, command
from ramify.servers.member import Care, cancelled
from ramify.servers.server_pool import Down, Event, GivenUp, ServerPool, Up

NOWHERE: Final = "http://127.0.0.1:9"
"""Address for an engine that has no server yet: the port of the discard service."""
LOOK_S: Final = 5.0
"""Time between two looks for replicas that are out of service."""


class SelfServed(InFront):
    """`build` makes the engine of a server from its address. `pool` makes the servers when they are to be started; it
    gets the function to call with each event."""

    def __init__(
        self,
        build: Callable[[str], Engine],
        pool: Callable[[Callable[[Event], None]], Awaitable[ServerPool]],
        *,
        placement: PlacementName = "prefix",
        patience: Patience = PATIENCE,
    ) -> None:
        super().__init__(build(NOWHERE))
        self._build = build
        self._placement: PlacementName = placement
        self._patience = patience
        self._moves: asyncio.Queue[Up] = asyncio.Queue()
        self._pool = pool
        self._servers: ServerPool | None = None
        self._replicas: Replicas | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._connecting = asyncio.Lock()

    async def connect(self) -> None:
        """Start the servers, wait until they are ready, and ask them what they are. Raises as `ServerPool.start` and
        the engines do. Calling it again is harmless."""
        async with self._connecting:
            if self._replicas is None:
                await self._start()

    async def generate(self, request: Request) -> Generation:
        if self._replicas is None:
            raise ContractError("the engine starts its own servers: connect it before you ask it")
        return await self._replicas.generate(request)

    async def close(self) -> None:
        """Close the engines and stop the servers. If cancelled, it kills the servers. Calling it again is harmless."""
        tasks, self._tasks = self._tasks, []
        try:
            await cancelled(tasks)
            await self.engine.close()
        except asyncio.CancelledError:
            if self._servers is not None:
                self._servers.kill()
            await self.engine.close()
            raise
        finally:
            if self._servers is not None:
                await self._servers.stop()

    async def _start(self) -> None:
        self._servers = await self._pool(self._observe)
        urls = await self._servers.start()
        while not self._moves.empty():
            self._moves.get_nowait()  # The first addresses are known.
        nowhere = self.engine
        engines = [self._build(url) for url in urls]
        names = [f"server-{index}" for index in range(len(urls))]
        self.engine = replicas = Replicas(engines, placement=self._placement, names=names, patience=self._patience)
        await nowhere.close()
        try:
            await replicas.connect()
        except BaseException:
            await self.close()
            raise
        self._replicas = replicas
        self._tasks = [
            asyncio.create_task(self._follow(replicas)),
            asyncio.create_task(_doubt(replicas, self._servers)),
        ]

    def _observe(self, event: Event) -> None:
        match event:
            case Up():
                self._moves.put_nowait(event)
            case Down() | GivenUp() if self._replicas is not None:
                self._replicas.leave_out(event.index)
            case _:
                pass

    async def _follow(self, replicas: Replicas) -> None:
        """Replace the old replica of a server that was started again."""
        while True:
            moved = await self._moves.get()
            await replicas.replace(moved.index, self._build(moved.url))


async def _doubt(replicas: Replicas, servers: ServerPool) -> None:
    """Ask the server of each suspect replica to generate a token: it may be up and still unable to generate."""
    while True:
        await asyncio.sleep(LOOK_S)
        for index, stats in enumerate(replicas.stats):
            if stats.state == "suspect":
                servers.suspect(index)


def self_served(
    build: Callable[[str], Engine],
    launch: Launch,
    *,
    count: int,
    placement: PlacementName = "prefix",
    patience: Patience = PATIENCE,
) -> SelfServed:
    """An engine over `count` servers of `launch`, on this machine."""

    async def pool(observe: Callable[[Event], None]) -> ServerPool:
        ready = await asyncio.to_thread(settled, launch, ours=os.environ)
        return ServerPool(
            Here(functools.partial(command, ready, ours=os.environ), home=Home(logs=log_folder(ready.config.logs))),
            count=count,
            probe=ready.probe,
            care=Care(start_s=ready.config.start_s),
            observe=observe,
        )

    return SelfServed(build, pool, placement=placement, patience=patience)
