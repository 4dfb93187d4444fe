"""Fleet: the replicas of one model, which of them are in service, and what makes the others right again.

A replica that is left out is looked after by a task of its own: asked what it is, woken, given the weights that the
others have, made to generate one token; with growing pauses, until all of that is right. The tasks end with `close`.
Invariant: a replica in service is the same model as the others and has, as far as anybody can tell, the weights that
were acknowledged last.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final, TypeVar

from ramify.core.engine import Engine
from ramify.core.errors import ConfigError, EngineError, RamifyError
from ramify.engines.identity import Identity, ask_what_it_is
from ramify.engines.placement import Load
from ramify.engines.replica import Replica, ReplicaStats, State, Weights

T = TypeVar("T")

SICK: Final = frozenset({"unreachable", "disconnected", "timeout", "engine_silent", "engine_hang", "closed"})
"""Failures that say more about the replica than about what was asked."""
STALE: Final = "stale_weights"
"""What an answer by older weights than the acknowledged ones is, whoever finds out."""
MAX_FAILED_PROBES: Final = 2
"""Looks in a row at a replica that did not answer, after which what it has in flight is given up."""
BASE_S: Final = 0.5
CAP_S: Final = 30.0
"""Pauses between looks, as `Retrying`'s: the first at once, then 0.5 s, doubling up to 30 s."""
MAX_TOLD: Final = 3
"""Replicas in a message about all of them."""


class Fleet:
    """Mutable. `load` says who takes requests; `forget` is called with a replica whose cache is gone."""

    def __init__(
        self, engines: Sequence[Engine], names: Sequence[str], *, load: Load, forget: Callable[[int], None]
    ) -> None:
        self.replicas = [Replica(engine, ReplicaStats(name)) for engine, name in zip(engines, names, strict=True)]
        self.identity = Identity.of(engines[0])
        self.version: int | None = None
        """Of the weights acknowledged last: no request sampled by older ones is good. None = nothing is known."""
        self._load = load
        self._forget_cache = forget
        self._wanted: Weights | None = None
        """What every replica in service has loaded, or is loading."""
        self._is_met = False
        """Whether `identity` is what a server has said."""
        self._awake = asyncio.Event()
        self._awake.set()
        self._is_closed = False

    # -- before a run -------------------------------------------------------------------------------------------------

    async def connect(self) -> None:
        """Ask every replica what it is; one that does not answer is left out. Raises `ConfigError` where one is another
        model or has other weights, `EngineError` where none answers."""
        found, faults = await self._each(self._load.takers or range(len(self.replicas)), _ask_what_it_is)
        self._leave_out(faults)
        self.identity, self._is_met = Identity.of(self.replicas[min(found)].engine), True
        for index in found:
            self.identity.refuse_another(self.replicas[index].engine, self.replicas[index].name)
        if self.identity.capabilities.has_versions and self._awake.is_set():
            versions, faults = await self._each(found, Replica.probe)
            self._leave_out(faults)
            self._compare_versions(versions)

    def _leave_out(self, faults: Mapping[int, RamifyError]) -> None:
        """Go on without replicas that do not answer. Raises what is no matter of answering."""
        for fault in faults.values():
            if not isinstance(fault, EngineError):
                raise fault
        for index, fault in faults.items():
            self.take_out(index, "suspect", fault)

    def _compare_versions(self, versions: dict[int, int | None]) -> None:
        """Refuse a replica with older weights than the others, or give it theirs where they are known."""
        known = {index: version for index, version in versions.items() if version is not None}
        newest = max(known.values(), default=None) if self._wanted is None else self._wanted.version
        for index, version in known.items():
            if newest is None or version >= newest:
                continue
            said = f"{self.replicas[index].name} has weights of version {version}, others of version {newest}"
            if self._wanted is None:
                raise ConfigError(f"{said}; load the same into all of them")
            self.take_out(index, "stale", EngineError(STALE, said))
        self.version = newest

    # -- in and out of service ----------------------------------------------------------------------------------------

    def take_out(self, index: int, state: State, fault: Exception) -> None:
        """Give it nothing new until it is right again. One that is being drained stays so."""
        replica = self.replicas[index]
        if replica.stats.state != "draining":
            replica.stats.state, replica.stats.fault = state, str(fault)
            self._load.exclude(index)
            self._mend_now(index)

    def rest(self, index: int, seconds: float) -> None:
        """Give it nothing new for so long, as it asked for."""
        replica = self.replicas[index]
        if replica.stats.state == "ready":
            replica.stats.state = "busy"
            replica.busy_until = asyncio.get_running_loop().time() + seconds
            self._load.exclude(index)

    def look_after(self) -> None:
        """Call often: lets busy replicas back in whose time is over, and sees to it that the sick are looked after."""
        if len(self._load.takers) == len(self.replicas):
            return
        for index, replica in enumerate(self.replicas):
            match replica.stats.state:
                case "busy" if asyncio.get_running_loop().time() >= replica.busy_until:
                    self._let_in(index)
                case "suspect" | "stale":
                    self._mend_now(index)
                case _:
                    pass

    def nobody(self) -> EngineError:
        """Why no replica takes a request."""
        now = asyncio.get_running_loop().time()
        rests = [r.busy_until - now for r in self.replicas if r.stats.state == "busy"]
        if rests:
            after_s = max(0.0, min(rests))
            return EngineError("busy", "every replica is", is_retryable=True, retry_after_s=after_s)
        said = [f"{r.name} is {r.stats.state} ({r.stats.fault or 'as told'})" for r in self.replicas]
        more = f"; and {len(said) - MAX_TOLD} more" if len(said) > MAX_TOLD else ""
        return EngineError("unreachable", "; ".join(said[:MAX_TOLD]) + more, is_retryable=True)

    async def drain(self, index: int) -> None:
        """Give it nothing new and wait until it has nothing left. It stays out until it is replaced."""
        replica = self.replicas[index]
        replica.stats.state, replica.stats.fault = "draining", ""
        self._load.exclude(index)
        await self._stop_mending(replica)
        await replica.idle()

    async def replace(self, index: int, engine: Engine) -> None:
        """Put another engine in its place, or the same one again. What was in flight there fails at once, the old
        engine is closed, and the new one gets requests as soon as it is found to be right."""
        old = self.replicas[index]
        self._lose(index)
        self.replicas[index] = Replica(engine, old.stats)
        old.stats.state = "suspect"
        self.take_out(index, "suspect", EngineError("replaced", "it has not been looked at yet"))
        await self._stop_mending(old)
        if engine is not old.engine:
            await old.engine.close()

    async def close(self) -> None:
        """End all that was begun, and close every engine. Harmless when repeated."""
        self._is_closed = True
        for replica in self.replicas:
            await self._stop_mending(replica)
        await asyncio.gather(*(replica.engine.close() for replica in self.replicas))

    def _let_in(self, index: int) -> None:
        self.replicas[index].stats.state = "ready"
        self._load.admit(index)

    def _lose(self, index: int) -> None:
        self.replicas[index].lose()
        self._forget(index)

    def _forget(self, index: int) -> None:
        self.replicas[index].num_caches += 1
        self._forget_cache(index)

    # -- looking after the sick ---------------------------------------------------------------------------------------

    def _mend_now(self, index: int) -> None:
        replica = self.replicas[index]
        if not self._is_closed and (replica.mending is None or replica.mending.done()):
            replica.mending = asyncio.create_task(self._mend(index), name=f"ramify looks after {replica.name}")

    async def _stop_mending(self, replica: Replica) -> None:
        mending, replica.mending = replica.mending, None
        if mending is not None and not mending.done():
            mending.cancel()
            await asyncio.wait([mending])

    async def _mend(self, index: int) -> None:
        """Look at a replica until it is right, then let it in."""
        replica, num_failed = self.replicas[index], 0
        while True:
            await asyncio.sleep(pause_s(replica.num_strikes))
            await self._awake.wait()
            replica.num_strikes += 1
            fault = await self._fault(replica)
            if fault is None:
                return self._let_in(index)
            replica.stats.fault = str(fault)
            is_silent = isinstance(fault, EngineError) and fault.reason in SICK
            num_failed = num_failed + 1 if is_silent else 0
            if num_failed == MAX_FAILED_PROBES:
                self._lose(index)

    async def _fault(self, replica: Replica) -> Exception | None:
        """What is wrong with a replica; None = nothing. Mends what it can. Boundary to plug-in code: a replica that
        raises anything is not right."""
        try:
            await _ask_what_it_is(replica)
            if self._is_met:
                self.identity.refuse_another(replica.engine, replica.name)
            await replica.wake()
            await replica.check_health()
            if not await self._is_behind(replica):
                return None
            if self._wanted is not None:
                await replica.update(self._wanted)
                if not await self._is_behind(replica):
                    return None
        except RamifyError as error:
            return error
        except Exception as error:  # noqa: BLE001
            return EngineError("engine_raised", f"{type(error).__name__}: {error}")
        return EngineError(STALE, f"{replica.name} has older weights than were acknowledged")

    async def _is_behind(self, replica: Replica) -> bool:
        """Have it generate a token; whether that was sampled by other weights than those wanted."""
        try:
            version = await replica.probe()
        except EngineError as error:
            if error.reason == STALE:
                return True
            raise
        wanted = self._wanted
        if version is not None:
            needed = self.version if wanted is None else wanted.version
            return needed is not None and version < needed
        return wanted is not None and replica.weights != wanted

    # -- the control side ---------------------------------------------------------------------------------------------

    async def pause(self) -> None:
        self._fall_asleep()
        await self._on_all(Replica.pause)

    def _fall_asleep(self) -> None:
        """Nobody is looked at until the fleet is awake again."""
        if self._awake.is_set():
            self._awake = asyncio.Event()

    async def resume(self) -> None:
        try:
            await self._on_all(Replica.resume)
        finally:
            self._awake.set()

    async def offload(self, tags: tuple[str, ...]) -> None:
        self._fall_asleep()
        await self._on_all(lambda replica: replica.offload(tags))
        self._forget_all()

    async def onload(self, tags: tuple[str, ...]) -> None:
        try:
            await self._on_all(lambda replica: replica.onload(tags))
        finally:
            self._awake.set()

    async def update(self, weights: Weights) -> None:
        """Load weights into every replica in service; one that fails is left out until it has them. What is
        acknowledged changes when all are done, and not at all where all fail, which raises."""
        before, self._wanted = self._wanted, weights
        try:
            await self._on_all(lambda replica: replica.update(weights), state="stale")
        except BaseException:
            self._wanted = before
            raise
        self.version = weights.version
        self._forget_all()

    async def is_healthy(self) -> bool:
        """Whether any replica in service says that it is well."""
        said = await asyncio.gather(*(r.control.is_healthy() for r in self._in_service().values()))
        return any(said)

    def _in_service(self) -> dict[int, Replica]:
        """Those that run requests, whether or not they take new ones."""
        served = ("ready", "busy", "draining")
        return {index: r for index, r in enumerate(self.replicas) if r.stats.state in served}

    async def _on_all(self, act: Callable[[Replica], Awaitable[None]], *, state: State = "suspect") -> None:
        """Do it to every replica in service. Raises `ConfigError` before anything is done where one has no control
        side, `EngineError` where none is in service, a failure where all fail."""
        indices = list(self._in_service())
        for index in indices:
            _ = self.replicas[index].control
        if not indices:
            raise self.nobody()
        _, faults = await self._each(indices, act)
        for index, fault in faults.items():
            self.take_out(index, state, fault)

    async def _each(
        self, indices: Iterable[int], ask: Callable[[Replica], Awaitable[T]]
    ) -> tuple[dict[int, T], dict[int, RamifyError]]:
        """What each of some replicas answers, and how the others fail. Raises a failure where all fail: one
        that is no matter of answering, if there is any."""
        asked = list(indices)
        answers = await asyncio.gather(*(ask(self.replicas[i]) for i in asked), return_exceptions=True)
        found: dict[int, T] = {}
        faults: dict[int, RamifyError] = {}
        for index, answer in zip(asked, answers, strict=True):
            if isinstance(answer, RamifyError):
                faults[index] = answer
            elif isinstance(answer, BaseException):
                raise answer
            else:
                found[index] = answer
        if not found:
            raise min(faults.values(), key=lambda fault: isinstance(fault, EngineError))
        return found, faults

    def _forget_all(self) -> None:
        for index in range(len(self.replicas)):
            self._forget(index)


async def _ask_what_it_is(replica: Replica) -> None:
    await ask_what_it_is(replica.engine, replica.name)


def pause_s(num_strikes: int) -> float:
    """Seconds before the next look at a replica that has been looked at so often without a good answer since."""
    return min(CAP_S, BASE_S * 2.0 ** min(num_strikes - 1, 60)) if num_strikes else 0.0
