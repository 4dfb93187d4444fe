"""Multi-node: an engine whose members run on several nodes, as one server of a pool.

The members live and die together: when one member ends, the engine has ended and the others are stopped, since they
would wait forever in a collective. The pool decides whether the engine is ready and when to restart it; it asks only
the head. A restarted engine gets the ports and cards of the plan.
"""

import asyncio
import signal
from collections.abc import Callable, Iterable, Sequence

from ramify.core.errors import EngineError
from ramify.servers.member import cancelled
from ramify.servers.pool.member_process import MemberLost, RemoteMember
from ramify.servers.pool.plan import EngineMember, EnginePlan, PoolPlan
from ramify.servers.ports import Address
from ramify.servers.process import GUARD_S


class Spread:
    """The engines of a plan as servers of a pool, called engine-INDEX. `member` makes each of their members. `close` is
    called when the pool has stopped."""

    def __init__(
        self, plan: PoolPlan, member: Callable[[EnginePlan, EngineMember], RemoteMember], *, close: Callable[[], None]
    ) -> None:
        self._plan = plan
        self._member = member
        self._close = close

    def place(self, index: int) -> "SpreadPlace":
        engine = self._plan.engines[index]
        return SpreadPlace(engine, [self._member(engine, member) for member in engine.members])

    def close(self) -> None:
        self._close()


class SpreadPlace:
    """The place of one engine: the address of its head."""

    def __init__(self, engine: EnginePlan, members: Sequence[RemoteMember]) -> None:
        self.name = f"engine-{engine.index}"
        self._engine = engine
        self._members = members

    @property
    def address(self) -> Address:
        return self._engine.head.address

    async def start(self) -> "SpreadServer":
        return await SpreadServer.started(self._members)

    def move(self) -> bool:
        """Never: the other members know the address of the plan."""
        return False


class SpreadServer:
    """The members of one engine, started together. Made by `started`."""

    def __init__(self, members: Sequence[RemoteMember], *, pid: int) -> None:
        self.pid = pid
        self._members = members
        self._words = ""
        self._is_stopping = False
        self._ended = asyncio.create_task(self._end())

    @classmethod
    async def started(cls, members: Sequence[RemoteMember]) -> "SpreadServer":
        """Start all members together, since they wait for each other; the head is the first. Raises what a member
        raises, and `EngineError` if one is lost; the others are stopped then."""
        starts = [asyncio.create_task(_start(member)) for member in members]
        try:
            pids = await asyncio.gather(*starts)
        except BaseException:
            await cancelled(starts)
            await _stopped(members, grace_s=0)
            raise
        return cls(members, pid=pids[0])

    @property
    def is_running(self) -> bool:
        return not self._ended.done()

    async def listens(self, port: int) -> bool:
        """Asks the head, which has no port but the engine's."""
        try:
            return await self._members[0].listens()
        except MemberLost:
            return False

    async def last_words(self) -> str:
        """The words of the member that ended first; of all members while none has ended."""
        return self._words or "; ".join(await asyncio.gather(*map(_words, self._members)))

    async def wait(self) -> int:
        """Wait until nothing of any member is left; returns the exit code of the member that ended first (for a lost
        one, that of SIGKILL)."""
        return await asyncio.shield(self._ended)

    async def stop(self, *, grace_s: float) -> int:
        self._is_stopping = True
        try:
            await _stopped(self._members, grace_s=grace_s)
            return await self.wait()
        except asyncio.CancelledError:
            self.kill()
            await asyncio.wait({self._ended}, timeout=GUARD_S)
            raise

    def kill(self) -> None:
        for member in self._members:
            member.kill()

    async def _end(self) -> int:
        """Wait until one member has ended, and then until all have. If cancelled, it kills them."""
        waits = {asyncio.create_task(_exit_code(member)): member for member in self._members}
        try:
            ended, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            first = next(wait for wait in waits if wait in ended)
            self._words = await _words(waits[first])
            if not self._is_stopping:
                await _stopped(self._members, grace_s=0)
            await asyncio.wait(waits)
            return first.result()
        except asyncio.CancelledError:
            self.kill()
            raise
        finally:
            await cancelled(waits)


async def _start(member: RemoteMember) -> int:
    try:
        return await member.start()
    except MemberLost as error:
        raise EngineError("server_not_started", f"{member.name} is lost: {error}") from error


async def _exit_code(member: RemoteMember) -> int:
    try:
        return await member.wait()
    except MemberLost:
        return -signal.SIGKILL


async def _words(member: RemoteMember) -> str:
    try:
        return f"{member.name}: {await member.last_words()}"
    except MemberLost as error:
        return f"{member.name} is lost: {error}"


async def _stopped(members: Iterable[RemoteMember], *, grace_s: float) -> None:
    """Stop all to the end, whatever one of them raises; then raise the first error. The guard of a lost member has
    killed it, if its node still runs."""
    results = await asyncio.gather(*(member.stop(grace_s) for member in members), return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException) and not isinstance(result, MemberLost):
            raise result
