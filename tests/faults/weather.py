"""What happens beside a chaos run to the servers of its model: they are lost, hang, are busy, come back with the
weights they began with; and a trainer changes the weights of all.

Every server is in trouble about a twentieth of the time, by seed. None of it may be seen in a tree.
"""

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Final, Literal

from tests.engines.breakable import Breakable
from tests.faults.chaos import Chaos

from ramify.core.errors import EngineError
from ramify.engines.fleet.replicas import Replicas

Trouble = Literal["unreachable", "disconnected", "timeout", "stale", "silent", "busy"]
TROUBLES: Final[tuple[Trouble, ...]] = ("unreachable", "disconnected", "timeout", "stale", "silent", "busy")

WELL_S: Final = 400.0
"""Mean time between two troubles of one server: no request should meet four of them."""
AWAY_S: Final = 20.0
"""Mean time a trouble takes."""
SILENT_S: Final = 200.0
"""Mean time that a server answers nothing: longer than anybody waits for it."""
BUSY_S: Final = 5.0
TRAIN_S: Final = 150.0
"""Between two changes of the weights."""


@dataclass(frozen=True)
class Weather:
    """Over the servers of one run."""

    chaos: Chaos
    replicas: Replicas
    servers: Sequence[Breakable]
    seen: Counter[Trouble] = field(default_factory=Counter)
    """How often each trouble came."""

    @asynccontextmanager
    async def around(self) -> AsyncIterator[None]:
        """For as long as the block runs."""
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._over(index)) for index in range(len(self.servers))]
            tasks.append(group.create_task(self._train()))
            yield
            for task in tasks:
                task.cancel()

    async def _train(self) -> None:
        for version in itertools.count(1):
            with suppress(EngineError):  # Nobody is in service now: the next weights come.
                await self.replicas.update_weights(f"step-{version}", version)
            await asyncio.sleep(TRAIN_S)

    async def _over(self, index: int) -> None:
        for number in itertools.count():
            await asyncio.sleep(2 * WELL_S * self.chaos.draw("well", index, number))
            trouble = self.chaos.one_of(TROUBLES, "trouble", index, number)
            self.seen[trouble] += 1
            await _befall(self.servers[index], trouble, 2 * self.chaos.draw("away", index, number))


async def _befall(server: Breakable, trouble: Trouble, share: float) -> None:
    """One trouble, from its beginning to its end; `share` of its mean time."""
    match trouble:
        case "busy":
            server.busy_s = BUSY_S
            await asyncio.sleep(share * AWAY_S)
            server.busy_s = None
        case "silent":
            server.fall_silent()
            await asyncio.sleep(share * SILENT_S)
            server.die()
            server.come_back(version=server.inner.version)
        case "stale":
            server.die()
            server.come_back(version=0)
        case _:
            server.die(trouble)
            await asyncio.sleep(share * AWAY_S)
            server.come_back(version=server.inner.version)
