"""Replica: one of several servers of a model: its engine, the calls on it, and what is known of its health.

Every call can be ended from here. So a lost replica returns its requests at once, and an abort works even if the engine
has none. A call on an engine that enforces no deadlines gets one. The replica remembers which orders may have been done
in part, so that they can be undone. `fleet.py` decides whether a replica gets requests.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Final, Literal, TypeVar

from ramify.core.engine import Abortable, Engine, EngineControl, Generation, Remote, Request, checked
from ramify.core.errors import ConfigError, EngineError, RamifyError
from ramify.core.segment import token_array
from ramify.edge.open_files import WAIT_S, out_of_files
from ramify.edge.patience import PATIENCE, Patience
from ramify.engines.in_front import nothing

T = TypeVar("T")
State = Literal["ready", "busy", "suspect", "stale", "draining"]
"""busy: it said so itself, for a while; suspect: it failed and is being checked; stale: its weights are old."""
End = Literal["lost", "aborted"]

HEALTH_S: Final = 20.0
"""Timeout for a server to say whether it is healthy (sgl-project/sglang: health check, 20 s)."""
PING: Final = "ping"


@dataclass(frozen=True, slots=True)
class ReplicaWeights:
    """The weights that an engine was told to load."""

    source: str
    version: int


@dataclass(slots=True)
class ReplicaStats:
    """Statistics of a replica so far."""

    name: str
    state: State = "ready"
    fault: str = ""
    """Why it was last taken out of service."""
    in_flight: int = 0
    num_requests: int = 0
    num_failed: int = 0
    num_spills: int = 0
    """Requests it got because a replica that held more of their context was full."""
    prefill_cached: int = 0
    prefill_uncached: int = 0


@dataclass(slots=True, eq=False)
class _Call:
    """One running request."""

    request_id: str
    scope: asyncio.Timeout
    end: End | None = None
    """Why it was ended from here."""


class Replica:
    """One engine among others of its kind. Mutable."""

    def __init__(self, engine: Engine, stats: ReplicaStats, *, patience: Patience = PATIENCE) -> None:
        self.engine = engine
        self.stats = stats
        self.patience = patience
        self.mending: asyncio.Task[None] | None = None
        """Its recovery task while it is out of service."""
        self.weights: ReplicaWeights | None = None
        """The weights it has loaded since it was last unreachable, as far as is known."""
        self.is_torn = False
        """Whether its weights may be half loaded because an update failed. Servers stay paused then."""
        self.busy_until = 0.0
        """Time on the event loop's clock."""
        self.num_caches = 0
        """How often its cache was lost, or must be assumed lost."""
        self.num_strikes = 0
        """Number of checks since its last good answer."""
        self.num_in_a_row = 0
        """Number of failures since then."""
        self._sleep: Literal["awake", "paused", "offloaded"] = "awake"
        self._updating = asyncio.Lock()
        self._calls: set[_Call] = set()
        self._idle = asyncio.Event()
        self._num_probes = 0

    @property
    def name(self) -> str:
        return self.stats.name

    @property
    def control(self) -> EngineControl:
        """The engine's control methods. Raises `ConfigError` if it has none."""
        if isinstance(self.engine, EngineControl):
            return self.engine
        raise ConfigError(f"{self.name} ({self.engine.capabilities.name!r}) has no control side: no EngineControl")

    # -- requests -----------------------------------------------------------------------------------------------------

    async def ask(self, request: Request) -> Generation:
        """Run one request and check the answer. Raises `EngineError`."""
        call = _Call(request.request_id, asyncio.timeout(self._patience_s(request)))
        self._calls.add(call)
        self._idle.clear()
        try:
            async with call.scope:
                generation = await self.engine.generate(request)
        except Exception as error:  # boundary to plug-in code: any exception of an engine is a replica fault
            if call.end is not None or call.scope.expired():
                return self._ended(call, request)
            if isinstance(error, RamifyError):
                raise
            if (told := out_of_files(error)) is not None:
                raise EngineError("busy", told, is_retryable=True, retry_after_s=WAIT_S) from error
            raise EngineError("engine_raised", f"{type(error).__name__}: {error}") from error
        finally:
            self._calls.remove(call)
            if not self._calls:
                self._idle.set()
        return checked(generation, request, self.engine.codec.vocab_size)

    async def idle(self) -> None:
        """Wait until no request is running."""
        if self._calls:
            await self._idle.wait()

    async def abort(self, request_id: str) -> None:
        """End every request with this id; it returns what it had, or no tokens if the engine cannot say."""
        if isinstance(self.engine, Abortable):
            await self.engine.abort(request_id)
        else:
            self._end([call for call in self._calls if call.request_id == request_id], "aborted")

    def lose(self) -> None:
        """The replica has lost all requests and all its state: every call fails now."""
        self.weights = None
        if self._sleep == "offloaded":
            self._sleep = "awake"  # A restarted sglang server would crash when told to take memory back.
        self._end(self._calls, "lost")

    def has(self, request_id: str) -> bool:
        """Whether a request with this id is running."""
        return any(call.request_id == request_id for call in self._calls)

    def _patience_s(self, request: Request) -> float | None:
        return None if self.engine.capabilities.keeps_deadlines else self.patience.deadline_s(request)

    def _end(self, calls: "set[_Call] | list[_Call]", end: End) -> None:
        now = asyncio.get_running_loop().time()
        for call in calls:
            if call.end is None and not call.scope.expired():
                call.end = end
                call.scope.reschedule(now)

    def _ended(self, call: _Call, request: Request) -> Generation:
        """The result of a call that was ended from here."""
        match call.end:
            case "aborted":
                return nothing(request, self.engine)
            case "lost":
                raise EngineError("disconnected", f"{self.name} went down while the request ran", is_retryable=True)
            case None:
                waited = f"{self._patience_s(request):.0f} s"
                raise EngineError("engine_hang", f"{self.name}: no answer in {waited}", is_retryable=True)

    # -- health -------------------------------------------------------------------------------------------------------

    async def connect(self) -> None:
        """Let the engine ask its server what it runs, if it has one. Raises `EngineError`, or a `ConfigError` that
        names the replica."""
        if not isinstance(self.engine, Remote):
            return
        keeps_deadlines = self.engine.capabilities.keeps_deadlines
        try:
            async with asyncio.timeout(None if keeps_deadlines else self.patience.start_s):
                await self.engine.connect()
        except TimeoutError:
            waited = f"{self.patience.start_s:.0f} s"
            raise EngineError("timeout", f"{self.name} did not say in {waited} what it is", is_retryable=True) from None
        except ConfigError as error:
            raise ConfigError(f"{self.name}: {error}") from error

    async def probe(self) -> int | None:
        """Sample one token, because a server may report that it is healthy and be dead. Returns the version of the
        weights that sampled it; None = it has no versions. Raises `EngineError`."""
        self._num_probes += 1
        request = Request(
            token_array(self.engine.codec.encode(PING)),
            max_tokens=1,
            seed=self._num_probes,
            request_id=f"{PING}/{self.name}/{self._num_probes:08}",
            messages=({"role": "user", "content": PING},),
        )
        generation = await self.ask(request)
        if generation.finish.kind == "abort":
            raise EngineError("engine_aborted", f"{self.name} aborted a request for one token", is_retryable=True)
        return oldest(generation)

    async def check_health(self) -> None:
        """Ask the server whether it is healthy, if it can say. Raises `EngineError` if it is not."""
        if not isinstance(self.engine, EngineControl):
            return
        try:
            async with asyncio.timeout(HEALTH_S):
                is_healthy = await self.engine.is_healthy()
        except TimeoutError:
            raise EngineError(
                "timeout", f"{self.name} did not answer whether it is healthy in {HEALTH_S:.0f} s"
            ) from None
        if not is_healthy:
            raise EngineError("unhealthy", f"{self.name} reports that it is unhealthy")

    # -- control ------------------------------------------------------------------------------------------------------

    async def update(self, weights: ReplicaWeights) -> None:
        """Load weights. If this fails, the replica remembers that they may be half loaded. Weights that the server
        refuses (`ConfigError`) change nothing."""
        async with self._updating:
            before, was_torn = self.weights, self.is_torn
            self.weights, self.is_torn = None, True
            try:
                await self.control.update_weights(weights.source, weights.version)
            except ConfigError:
                self.weights, self.is_torn = before, was_torn
                raise
            self.weights, self.is_torn = weights, False
            if was_torn and self._sleep == "awake":
                await self.control.resume()

    async def pause(self) -> None:
        self._sleep = "paused"
        await self.control.pause()

    async def offload(self, tags: tuple[str, ...]) -> None:
        self._sleep = "offloaded"
        await self.control.offload(tags)

    async def resume(self) -> None:
        await self.control.resume()
        self._sleep = "awake"

    async def onload(self, tags: tuple[str, ...]) -> None:
        await self.control.onload(tags)
        self._sleep = "awake"

    async def wake(self) -> None:
        """Undo the offload or pause that it was told before it was left out."""
        if self._sleep == "offloaded":
            await self.control.onload()
        if self._sleep != "awake":
            await self.resume()


def oldest(generation: Generation) -> int | None:
    """The oldest version of the weights that sampled any of it; None = it has no versions."""
    return min((version for version, _ in generation.versions), default=None)


async def each(
    replicas: Iterable[Replica], ask: Callable[[Replica], Awaitable[T]]
) -> tuple[dict[Replica, T], dict[Replica, RamifyError]]:
    """The answers of some replicas, and the failures of the others. If all fail, raises one failure: preferably one
    that is not an `EngineError`."""
    asked = list(replicas)
    answers = await asyncio.gather(*map(ask, asked), return_exceptions=True)
    found: dict[Replica, T] = {}
    faults: dict[Replica, RamifyError] = {}
    for replica, answer in zip(asked, answers, strict=True):
        if isinstance(answer, RamifyError):
            faults[replica] = answer
        elif isinstance(answer, BaseException):
            raise answer
        else:
            found[replica] = answer
    if not found:
        raise min(faults.values(), key=lambda fault: isinstance(fault, EngineError))
    return found, faults
