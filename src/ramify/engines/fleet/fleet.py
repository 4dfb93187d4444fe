"""Fleet: the replicas of one model: which of them are in service, and how the others recover.

A replica that is out of service has a recovery task, which checks it with growing pauses until it is fit again
(`fitness.py`). `close` ends the tasks. Invariant: a replica in service runs the same model as the others and has, as
far as anybody can tell, the weights that were acknowledged last. A replaced replica changes nothing any more, whatever
happens to it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

from ramify.core.engine import Engine
from ramify.core.errors import EngineError, RamifyError
from ramify.edge.patience import Patience
from ramify.edge.retries import MAX_PAUSE_S, doubled_s
from ramify.engines.fleet.fitness import STALE, Fitness
from ramify.engines.fleet.placement import Load
from ramify.engines.fleet.replica import Replica, ReplicaStats, ReplicaWeights, State, each

SICK: Final = frozenset({"unreachable", "disconnected", "timeout", "engine_silent", "engine_hang", "closed"})
"""Failures that point to the replica rather than to the request."""
MAX_FAILED_PROBES: Final = 2
"""Number of checks without an answer, in a row, after which a replica's running requests fail."""
BASE_S: Final = 0.5
CAP_S: Final = 30.0
"""Pauses between checks, the same as `Retrying`'s: the first check is immediate, then 0.5 s, doubling up to 30 s."""
TAKERS: Final[frozenset[State]] = frozenset({"ready", "busy"})
"""States of replicas that take new requests, now or soon."""
MAX_TOLD: Final = 3
"""Most replicas that a message about all of them names."""


class Fleet:
    """Mutable. `load` says which replicas take requests. `forget` is called with the index of a replica whose cache was
    lost."""

    def __init__(
        self,
        engines: Sequence[Engine],
        names: Sequence[str],
        *,
        load: Load,
        forget: Callable[[int], None],
        patience: Patience,
    ) -> None:
        self.replicas = [
            Replica(engine, ReplicaStats(name), patience=patience) for engine, name in zip(engines, names, strict=True)
        ]
        self.fitness = Fitness(engines[0])
        self._load = load
        self._forget_cache = forget
        self._awake = asyncio.Event()
        self._awake.set()
        self._updating = asyncio.Lock()
        self._is_closed = False

    async def connect(self) -> None:
        """Ask every replica what it runs. A replica that does not answer is left out. Raises `ConfigError` if one runs
        another model or has other weights, and `EngineError` if none answers."""
        asked = [self.replicas[index] for index in self._load.takers] or self.replicas
        found, faults = await each(asked, Replica.connect)
        self._leave_out(faults)
        self.fitness.meet(list(found))
        if self.fitness.identity.capabilities.has_versions and self._awake.is_set():
            versions, faults = await each(found, Replica.probe)
            self._leave_out(faults)
            for replica, fault in self.fitness.stale(versions).items():
                self.take_out(replica, "stale", fault)

    def _leave_out(self, faults: Mapping[Replica, RamifyError]) -> None:
        """Continue without replicas that do not answer. Raises every other kind of failure."""
        for fault in faults.values():
            if not isinstance(fault, EngineError):
                raise fault
        for replica, fault in faults.items():
            self.take_out(replica, "suspect", fault)

    # -- in and out of service ----------------------------------------------------------------------------------------

    def take_out(self, replica: Replica, state: State, fault: Exception) -> None:
        """Give it no new requests until it has recovered. A draining replica stays draining, but it is checked if its
        server may be down. If its weights may be half loaded, its running requests fail at once."""
        if replica not in self.replicas:
            return
        is_sick = _is_sick(fault)
        if replica.is_torn:
            self._lose(replica)
        elif is_sick:
            replica.weights = None
        if replica.stats.state in TAKERS:
            replica.stats.state, replica.stats.fault = state, str(fault)
            self._load.exclude(self.replicas.index(replica))
        if is_sick or replica.stats.state != "draining":
            self._mend_now(replica)

    def rest(self, replica: Replica, seconds: float) -> None:
        """Give it no new requests for `seconds`, as it asked."""
        if replica in self.replicas and replica.stats.state == "ready":
            replica.stats.state = "busy"
            replica.busy_until = asyncio.get_running_loop().time() + min(seconds, MAX_PAUSE_S)
            self._load.exclude(self.replicas.index(replica))

    def look_after(self) -> None:
        """Call this often: it returns busy replicas to service when their time is over, and makes sure that suspect and
        stale replicas have a recovery task."""
        if len(self._load.takers) == len(self.replicas):
            return
        for replica in self.replicas:
            match replica.stats.state:
                case "busy" if asyncio.get_running_loop().time() >= replica.busy_until:
                    self._let_in(replica)
                case "suspect" | "stale":
                    self._mend_now(replica)
                case _:
                    pass

    def nobody(self) -> EngineError:
        """The error that says why no replica takes a request."""
        now = asyncio.get_running_loop().time()
        rests = [r.busy_until - now for r in self.replicas if r.stats.state == "busy"]
        if rests:
            after_s = max(0.0, min(rests))
            return EngineError("busy", "all replicas are busy", is_retryable=True, retry_after_s=after_s)
        said = [f"{r.name} is {r.stats.state} ({r.stats.fault or 'as told'})" for r in self.replicas]
        more = f"; and {len(said) - MAX_TOLD} more" if len(said) > MAX_TOLD else ""
        return EngineError("unreachable", "; ".join(said[:MAX_TOLD]) + more, is_retryable=True)

    async def drain(self, index: int) -> None:
        """Give it no new requests and wait until it has none left. It stays out until it is replaced."""
        replica = self.replicas[index]
        replica.stats.state, replica.stats.fault = "draining", ""
        self._load.exclude(index)
        await replica.idle()

    async def replace(self, index: int, engine: Engine) -> None:
        """Replace its engine, perhaps by the same one. Its running requests fail at once, the old engine is closed, and
        the new one takes requests as soon as a check finds it fit."""
        if self._is_closed:
            return await engine.close()
        old = self.replicas[index]
        self._lose(old)
        new = self.replicas[index] = Replica(engine, old.stats, patience=old.patience)
        new.stats.state, new.stats.fault = "suspect", "it has not been looked at yet"
        self._load.exclude(index)
        self._mend_now(new)
        try:
            await _stop_mending(old)
        finally:
            if engine is not old.engine:
                await old.engine.close()

    async def close(self) -> None:
        """End all recovery tasks and close every engine. Calling it again does nothing."""
        self._is_closed = True
        for replica in self.replicas:
            await _stop_mending(replica)
        await asyncio.gather(*(replica.engine.close() for replica in self.replicas))

    def _let_in(self, replica: Replica) -> None:
        if replica.stats.state != "draining":
            replica.stats.state = "ready"
            self._load.admit(self.replicas.index(replica))

    def _lose(self, replica: Replica) -> None:
        replica.lose()
        self._forget(replica)

    def _forget(self, replica: Replica) -> None:
        replica.num_caches += 1
        self._forget_cache(self.replicas.index(replica))

    # -- looking after the sick ---------------------------------------------------------------------------------------

    def _mend_now(self, replica: Replica) -> None:
        if not self._is_closed and (replica.mending is None or replica.mending.done()):
            replica.mending = asyncio.create_task(self._mend(replica), name=f"ramify looks after {replica.name}")

    async def _mend(self, replica: Replica) -> None:
        """Check a replica until it is fit while the fleet is awake, then return it to service."""
        num_failed = 0
        while True:
            await asyncio.sleep(pause_s(replica.num_strikes))
            await self._awake.wait()
            replica.num_strikes += 1
            fault = await self.fitness.fault(replica)
            if fault is None and self._awake.is_set():
                return self._let_in(replica)
            replica.stats.fault = str(fault or "it was put to sleep while it was looked at")
            is_silent = fault is not None and _is_sick(fault)
            num_failed = num_failed + 1 if is_silent else 0
            if is_silent:
                replica.weights = None
            if num_failed == MAX_FAILED_PROBES:
                self._lose(replica)

    # -- the control side ---------------------------------------------------------------------------------------------

    async def pause(self) -> None:
        await self._put_to_sleep(Replica.pause)

    async def resume(self) -> None:
        try:
            await self._on_all(Replica.resume)
        finally:
            self._awake.set()

    async def offload(self, tags: tuple[str, ...]) -> None:
        await self._put_to_sleep(lambda replica: replica.offload(tags))
        self._forget_all()

    async def onload(self, tags: tuple[str, ...]) -> None:
        try:
            await self._on_all(lambda replica: replica.onload(tags))
        finally:
            self._awake.set()

    async def _put_to_sleep(self, act: Callable[[Replica], Awaitable[None]]) -> None:
        """Until the fleet is awake again, no replica is checked or returned to service."""
        was_awake = self._awake.is_set()
        if was_awake:
            self._awake = asyncio.Event()
        try:
            await self._on_all(act)
        except BaseException:
            if was_awake:
                self._awake.set()
            raise

    async def update(self, weights: ReplicaWeights) -> None:
        """Load weights into every replica in service. A replica that fails is left out until it has them. They are
        acknowledged when all replicas are done. If all fail, this raises and nothing is acknowledged; replicas that may
        have other weights by then get the earlier ones again, if these are known."""
        async with self._updating:
            before, self.fitness.wanted = self.fitness.wanted, weights
            try:
                await self._on_all(lambda replica: replica.update(weights), state="stale")
            except BaseException as fault:
                self.fitness.wanted = before
                for replica in self._in_service():
                    if before is not None and replica.weights != before:
                        self.take_out(replica, "stale", EngineError(STALE, f"a weight update failed: {fault}"))
                raise
            self.fitness.version = weights.version
            self._forget_all()

    async def is_healthy(self) -> bool:
        """Whether any replica in service reports that it is healthy."""
        said = await asyncio.gather(*(r.check_health() for r in self._controlled()), return_exceptions=True)
        return None in said

    def _in_service(self) -> list[Replica]:
        """Replicas that run requests, whether or not they take new ones."""
        return [replica for replica in self.replicas if replica.stats.state in TAKERS | {"draining"}]

    def _controlled(self) -> list[Replica]:
        """Replicas in service. Raises `ConfigError` if one has no control methods."""
        for replica in (served := self._in_service()):
            _ = replica.control
        return served

    async def _on_all(self, act: Callable[[Replica], Awaitable[None]], *, state: State = "suspect") -> None:
        """Call `act` on every replica in service. Raises `ConfigError` before any call if one has no control methods,
        `EngineError` if none is in service, and one of the failures if all fail."""
        served = self._controlled()
        if not served:
            raise self.nobody()
        _, faults = await each(served, act)
        for replica, fault in faults.items():
            self.take_out(replica, state, fault)

    def _forget_all(self) -> None:
        for replica in self.replicas:
            self._forget(replica)


async def _stop_mending(replica: Replica) -> None:
    mending, replica.mending = replica.mending, None
    if mending is not None and not mending.done():
        mending.cancel()
        await asyncio.wait([mending])


def _is_sick(fault: Exception) -> bool:
    """Whether the server may have gone down, and may come back without its state."""
    return isinstance(fault, EngineError) and fault.reason in SICK


def pause_s(num_strikes: int) -> float:
    """Seconds before the next check of a replica, after `num_strikes` checks since its last good answer."""
    return doubled_s(num_strikes, base_s=BASE_S, cap_s=CAP_S) if num_strikes else 0.0
