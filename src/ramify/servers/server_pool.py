"""Server pool: several servers of one model, started together and kept running until they are stopped.

Owns the servers it started and no others. It restarts a server that dies or stops answering: after a pause, at the same
address if possible, and a limited number of times in a row. Observers are called in the event loop with each change;
they must not raise. Invariant: when `stop` has returned, or `start` has raised, no server is left.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any

from ramify.core.errors import ConfigError, RamifyError
from ramify.servers.member import CARE, Care, Member, cancelled
from ramify.servers.place import ServerPlaces
from ramify.servers.probe import Probe


@dataclass(frozen=True, slots=True)
class Up:
    """A server is ready."""

    index: int
    url: str
    """It may differ from the address before a restart."""
    seconds: float
    """Time from its start until it was ready."""


@dataclass(frozen=True, slots=True)
class Down:
    """A server is down. It will be started again."""

    index: int
    url: str
    reason: str


@dataclass(frozen=True, slots=True)
class GivenUp:
    """A server went down too often in a row. It stays down."""

    index: int
    url: str
    reason: str


Event = Up | Down | GivenUp


class ServerPool:
    """`count` servers at `places`. The pool closes `places` when it stops."""

    def __init__(
        self,
        places: ServerPlaces,
        *,
        count: int,
        probe: Probe,
        care: Care = CARE,
        observe: Callable[[Event], None] = lambda event: None,
    ) -> None:
        if count < 1:
            raise ConfigError(f"count = {count!r}: at least 1 server")
        self._places = places
        self._count = count
        self._probe = probe
        self._care = care
        self._observe = observe
        self._members: list[Member] = []
        self._watches: list[asyncio.Task[None]] = []

    @property
    def urls(self) -> tuple[str, ...]:
        """Where the servers are, or were last."""
        return tuple(member.address.url for member in self._members)

    @property
    def pids(self) -> tuple[int | None, ...]:
        """Their process ids; None = it is down."""
        return tuple(member.pid for member in self._members)

    async def start(self) -> tuple[str, ...]:
        """Start all servers together and wait until they are ready; returns their addresses.

        Raises `ConfigError` if one cannot be started, for example because its port is taken. Raises `EngineError` with
        the end of its log if one died or was not ready in time. Nothing is left running then.
        """
        try:
            for index in range(self._count):
                self._members.append(Member(self._places.place(index), probe=self._probe, care=self._care))
            await _all(self._up(index) for index in range(self._count))
        except BaseException:
            await self.stop()
            raise
        self._watches = [asyncio.create_task(self._keep_up(index)) for index in range(self._count)]
        return self.urls

    async def stop(self) -> None:
        """Stop all servers: SIGTERM, a grace period, SIGKILL. If cancelled, it kills them at once. Calling it again is
        harmless."""
        watches, self._watches = self._watches, []
        try:
            await cancelled(watches)
            await _each(member.down() for member in self._members)
        except asyncio.CancelledError:
            self.kill()
            await _each(member.down() for member in self._members)
            raise
        finally:
            self._members = []
            self._places.close()

    def kill(self) -> None:
        """Kill all servers without waiting."""
        for member in self._members:
            member.kill()

    def suspect(self, index: int) -> None:
        """Check at once whether this server can still generate; for a caller that waited for it in vain."""
        self._members[index].suspect()

    async def _up(self, index: int) -> None:
        began = asyncio.get_running_loop().time()
        await self._members[index].up()
        self._observe(Up(index, self._members[index].address.url, asyncio.get_running_loop().time() - began))

    async def _keep_up(self, index: int) -> None:
        """Restart a server whenever it is down, until it was down too often in a row."""
        member, num_restarts, loop = self._members[index], 0, asyncio.get_running_loop()
        while True:
            since = loop.time()
            reason = await _reason(member.until_down())
            if loop.time() - since >= self._care.steady_s:
                num_restarts = 0
            while reason is not None:
                await _reason(member.down())
                if num_restarts == self._care.max_restarts:
                    self._observe(GivenUp(index, member.address.url, reason))
                    return
                self._observe(Down(index, member.address.url, reason))
                await asyncio.sleep(self._care.pause_s(num_restarts))
                num_restarts += 1
                reason = await _reason(self._up(index))


async def _reason(work: Coroutine[Any, Any, str | None]) -> str | None:
    """What `work` returns, or the text of the error it raised."""
    try:
        return await work
    except RamifyError as error:
        return str(error)


async def _all(works: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run all together. The first error cancels the others, waits for them and is raised."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        await asyncio.gather(*tasks)
    except BaseException:
        await cancelled(tasks)
        raise


async def _each(works: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run all together to the end, whatever one of them raises; then raise the first error."""
    results = await asyncio.gather(*works, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
