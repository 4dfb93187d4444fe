"""Replica: one of several servers of a model: its engine, the calls on it, and what is known of its health.

Every call can be ended from here, so that a lost replica gives its requests back at once and an abort works on engines
that know none. A call on an engine that keeps no deadlines gets one. Whether a replica is given requests at all is
decided by `replicas.py`.
"""

import asyncio
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from ramify.core.engine import Abortable, Engine, EngineControl, Generation, Request, checked
from ramify.core.errors import ConfigError, EngineError
from ramify.core.segment import Finish, token_array
from ramify.engines.patience import Patience

State = Literal["ready", "busy", "suspect", "stale", "draining"]
"""busy: it said so itself, for a while; suspect: it failed, and is looked after; stale: its weights are old."""
End = Literal["lost", "aborted"]

PATIENCE: Final = Patience()
HEALTH_S: Final = 20.0
"""Longest a server takes to say whether it is healthy (sgl-project/sglang: health check, 20 s)."""
PING: Final = "ping"


@dataclass(frozen=True, slots=True)
class Weights:
    """What an engine was told to load."""

    source: str
    version: int


@dataclass(slots=True)
class ReplicaStats:
    """What a replica has done so far."""

    name: str
    state: State = "ready"
    fault: str = ""
    """Why it was left out last."""
    in_flight: int = 0
    num_requests: int = 0
    num_failed: int = 0
    num_spills: int = 0
    """Requests it got because a replica that held more of their context was full."""
    prefill_cached: int = 0
    prefill_uncached: int = 0


@dataclass(slots=True, eq=False)
class _Call:
    """One request on its way."""

    request_id: str
    scope: asyncio.Timeout
    end: End | None = None
    """Why it was ended from here."""


class Replica:
    """One engine among others of its kind. Mutable."""

    def __init__(self, engine: Engine, stats: ReplicaStats) -> None:
        self.engine = engine
        self.stats = stats
        self.mending: asyncio.Task[None] | None = None
        """What looks after it while it is left out."""
        self.weights: Weights | None = None
        """What it has loaded since it was last lost, as far as is known."""
        self.busy_until = 0.0
        """By the loop's clock."""
        self.num_caches = 0
        """Times its cache was lost, or is to be taken for lost."""
        self.num_strikes = 0
        """Times it was looked at since its last good answer."""
        self.num_in_a_row = 0
        """Failures since then."""
        self._sleep: Literal["awake", "paused", "offloaded"] = "awake"
        self._calls: set[_Call] = set()
        self._idle = asyncio.Event()
        self._num_probes = 0

    @property
    def name(self) -> str:
        return self.stats.name

    @property
    def control(self) -> EngineControl:
        """Raises `ConfigError` where the engine has no control side."""
        if isinstance(self.engine, EngineControl):
            return self.engine
        raise ConfigError(f"{self.name} ({self.engine.capabilities.name!r}) has no control side: no EngineControl")

    # -- requests -----------------------------------------------------------------------------------------------------

    async def ask(self, request: Request) -> Generation:
        """One request, checked. Raises `EngineError`."""
        call = _Call(request.request_id, asyncio.timeout(self._patience_s(request)))
        self._calls.add(call)
        self._idle.clear()
        try:
            async with call.scope:
                generation = await self.engine.generate(request)
        except (TimeoutError, EngineError):
            if call.end is None and not call.scope.expired():
                raise
            return self._ended(call, request)
        finally:
            self._calls.remove(call)
            if not self._calls:
                self._idle.set()
        return checked(generation, request, self.engine.codec.vocab_size)

    async def idle(self) -> None:
        """Wait until nothing is on its way."""
        if self._calls:
            await self._idle.wait()

    async def abort(self, request_id: str) -> None:
        """End every request of this id with what it had: nothing, where the engine cannot tell."""
        if isinstance(self.engine, Abortable):
            await self.engine.abort(request_id)
        else:
            self._end([call for call in self._calls if call.request_id == request_id], "aborted")

    def lose(self) -> None:
        """Whatever ran on it is gone, and all it had: every call fails now."""
        self.weights, self._sleep = None, "awake"
        self._end(self._calls, "lost")

    def has(self, request_id: str) -> bool:
        """Whether a request of this id is on its way."""
        return any(call.request_id == request_id for call in self._calls)

    def _patience_s(self, request: Request) -> float | None:
        return None if self.engine.capabilities.keeps_deadlines else PATIENCE.deadline_s(request)

    def _end(self, calls: "set[_Call] | list[_Call]", end: End) -> None:
        now = asyncio.get_running_loop().time()
        for call in calls:
            if call.end is None and not call.scope.expired():
                call.end = end
                call.scope.reschedule(now)

    def _ended(self, call: _Call, request: Request) -> Generation:
        """What a call comes to that was ended from here."""
        match call.end:
            case "aborted":
                return _nothing(self.engine, request)
            case "lost":
                raise EngineError("disconnected", f"{self.name} was lost while the request ran", is_retryable=True)
            case None:
                waited = f"{self._patience_s(request):.0f} s"
                raise EngineError("engine_hang", f"{self.name}: no answer in {waited}", is_retryable=True)

    # -- health -------------------------------------------------------------------------------------------------------

    async def probe(self) -> int | None:
        """Have one token generated, for a server may say that it is well and be dead: the version of the weights that
        sampled it, None = it has no versions. Raises `EngineError`."""
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
            raise EngineError("engine_aborted", f"{self.name} gave one token up", is_retryable=True)
        return oldest(generation)

    async def check_health(self) -> None:
        """Ask the server whether it is well, if it can say. Raises `EngineError` if it is not."""
        if not isinstance(self.engine, EngineControl):
            return
        try:
            async with asyncio.timeout(HEALTH_S):
                is_healthy = await self.engine.is_healthy()
        except TimeoutError:
            raise EngineError("timeout", f"{self.name} did not say in {HEALTH_S:.0f} s whether it is healthy") from None
        if not is_healthy:
            raise EngineError("unhealthy", f"{self.name} says so itself")

    # -- control ------------------------------------------------------------------------------------------------------

    async def update(self, weights: Weights) -> None:
        await self.control.update_weights(weights.source, weights.version)
        self.weights = weights

    async def pause(self) -> None:
        await self.control.pause()
        self._sleep = "paused"

    async def offload(self, tags: tuple[str, ...]) -> None:
        await self.control.offload(tags)
        self._sleep = "offloaded"

    async def resume(self) -> None:
        await self.control.resume()
        self._sleep = "awake"

    async def onload(self, tags: tuple[str, ...]) -> None:
        await self.control.onload(tags)
        self._sleep = "awake"

    async def wake(self) -> None:
        """Undo what it was told before it was left out."""
        if self._sleep == "offloaded":
            await self.control.onload()
        if self._sleep != "awake":
            await self.resume()


def oldest(generation: Generation) -> int | None:
    """The oldest version of weights that sampled any of it; None = it has no versions."""
    return min((version for version, _ in generation.versions), default=None)


def _nothing(engine: Engine, request: Request) -> Generation:
    """What is left of a request whose engine cannot tell what it had."""
    empty = np.zeros(0, np.float32)
    return Generation(
        ids=token_array([]),
        finish=Finish("abort"),
        logprobs=None if engine.capabilities.logprobs is None else empty,
        measures=dict.fromkeys(request.measures, empty),
    )
