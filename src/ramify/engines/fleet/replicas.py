"""Replicas: several servers of one model as one engine.

Owns where a request goes (by the rule of `placement.py`, among the replicas that `fleet.py` has in service) and what is
made of its failure. A replica that fails takes nothing new until it is found to be right again; an answer by weights
older than the acknowledged ones is thrown away. Every failure is an error for `Retrying`, which stands in front:
nothing is tried again here. What a replica had in flight when it was lost costs none of the tries. Invariant: while one
replica is in service, no request waits for another.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from ramify.core.codec import Codec
from ramify.core.engine import Capabilities, Engine, Generation, Request
from ramify.core.errors import ConfigError, EngineError
from ramify.edge.patience import PATIENCE, Patience
from ramify.engines.fleet.fitness import STALE
from ramify.engines.fleet.fleet import SICK, Fleet
from ramify.engines.fleet.placement import (
    BLOCK_SIZE,
    CACHE_TOKENS,
    MAX_IN_FLIGHT,
    SPARE,
    Load,
    Placement,
    PlacementName,
    Seat,
    placement_of,
)
from ramify.engines.fleet.replica import Replica, ReplicaStats, ReplicaWeights, oldest

MAX_IN_A_ROW: Final = 3
"""Failures of any kind with no good answer in between that make a replica suspect: one that fails at once would be the
least loaded of all, and get everything."""
MAX_LOSSES: Final = 3
"""Replicas that may be lost with one request in flight, at no cost to it. The next time it is given up: it may well be
the reason. As many tries in all as a request has for other faults (`RetryPolicy.max_tries`)."""
MAX_LOST: Final = 1 << 16
"""Requests remembered for that."""


class Replicas:
    """An engine that places each request on one of its replicas.

    Implements `Remote`, `Abortable` and `EngineControl`; the last raises `ConfigError` where an engine has no control
    side. `max_in_flight` is what one replica computes at once; `names` tell them apart in errors and figures;
    `patience` is for engines that keep no deadlines.
    """

    def __init__(
        self,
        engines: Sequence[Engine],
        *,
        placement: PlacementName | Placement = "prefix",
        block_size: int = BLOCK_SIZE,
        cache_tokens: int = CACHE_TOKENS,
        max_in_flight: int = MAX_IN_FLIGHT,
        spare: int = SPARE,
        names: Sequence[str] = (),
        patience: Patience = PATIENCE,
    ) -> None:
        names = names or [f"replica {index}" for index in range(len(engines))]
        if not engines or len(names) != len(engines):
            raise ConfigError(f"{len(engines)} engines and {len(names)} names: at least one engine, one name for each")
        if isinstance(placement, str):
            placement = placement_of(placement, len(engines), block_size=block_size, cache_tokens=cache_tokens)
        self._placement: Placement = placement
        self._load = Load(len(engines), max_in_flight=max_in_flight, spare=spare)
        self._fleet = Fleet(engines, names, load=self._load, forget=placement.forget, patience=patience)
        self._lost: OrderedDict[str, int] = OrderedDict()
        """Id of a request -> replicas that were lost with it in flight."""
        self._is_closed = False

    @property
    def codec(self) -> Codec:
        return self._fleet.fitness.identity.codec

    @property
    def capabilities(self) -> Capabilities:
        return self._fleet.fitness.identity.capabilities

    @property
    def stats(self) -> tuple[ReplicaStats, ...]:
        """What each replica has done so far, in order."""
        return tuple(
            replace(replica.stats, in_flight=num)
            for replica, num in zip(self._fleet.replicas, self._load.in_flight, strict=True)
        )

    # -- requests -----------------------------------------------------------------------------------------------------

    async def generate(self, request: Request) -> Generation:
        """Carry one request out on one replica. Raises `EngineError`: `unreachable` where none is in service."""
        if self._is_closed:
            raise EngineError("closed", "the replicas were closed")
        self._fleet.look_after()
        seat = self._placement.seat(request.ids, request.affinity, self._load)
        if seat is None:
            raise self._fleet.nobody()
        replica = self._fleet.replicas[seat.replica]
        num_caches, version = replica.num_caches, self._fleet.fitness.version
        self._load.begin(seat.replica)
        try:
            generation = await replica.ask(request)
            _refuse_old(generation, version, replica)
        except EngineError as error:
            self._count_failure(error, replica)
            raise self._priced(error, request) from None
        finally:
            self._load.end(seat.replica)
        self._count(generation, seat, replica)
        self._lost.pop(request.request_id, None)
        if num_caches == replica.num_caches:
            self._placement.computed(seat, np.concatenate([request.ids, generation.ids[:-1]]))
        return generation

    async def abort(self, request_id: str) -> None:
        """End every request of this id with what it had; on an engine that cannot tell, with nothing."""
        for replica in self._fleet.replicas:
            if replica.has(request_id):
                await replica.abort(request_id)

    async def close(self) -> None:
        """Close every replica, and stop looking after them. Harmless when repeated."""
        self._is_closed = True
        await self._fleet.close()

    def _count(self, generation: Generation, seat: Seat, replica: Replica) -> None:
        replica.num_in_a_row = replica.num_strikes = 0
        replica.stats.num_requests += 1
        replica.stats.num_spills += seat.is_spill
        replica.stats.prefill_cached += generation.num_cached
        replica.stats.prefill_uncached += generation.num_prefilled

    def _count_failure(self, error: EngineError, replica: Replica) -> None:
        """Leave a replica out that is to blame."""
        replica.stats.num_requests += 1
        replica.stats.num_failed += 1
        if self._is_closed:
            return
        if error.retry_after_s is not None:
            self._fleet.rest(replica, error.retry_after_s)
            return
        replica.num_in_a_row += 1
        if error.reason == STALE:
            self._fleet.take_out(replica, "stale", error)
        elif error.reason in SICK or replica.num_in_a_row >= MAX_IN_A_ROW:
            self._fleet.take_out(replica, "suspect", error)

    def _priced(self, error: EngineError, request: Request) -> EngineError:
        """The error that says what another try costs: nothing where only this replica was in the way."""
        others = bool(self._load.takers)
        if self._is_closed:
            return error
        if error.retry_after_s is not None:
            error.retry_after_s = 0.0 if others else error.retry_after_s
        elif error.reason in SICK and self._num_losses(error, request) > MAX_LOSSES:
            error.is_retryable = False
        elif error.reason in {*SICK, STALE}:
            if not others:
                return EngineError("unreachable", f"{error}; no other replica is in service", is_retryable=True)
            error.is_retryable, error.retry_after_s = True, 0.0
        return error

    def _num_losses(self, error: EngineError, request: Request) -> int:
        """How many replicas were lost with this request in flight, this time included."""
        if error.reason == "unreachable" or not request.request_id:
            return 0
        self._lost[request.request_id] = num = self._lost.get(request.request_id, 0) + 1
        while len(self._lost) > MAX_LOST:
            self._lost.popitem(last=False)
        return num

    # -- the fleet ----------------------------------------------------------------------------------------------------

    async def connect(self) -> None:
        """Ask every replica what it is; one that does not answer is left out until it does.

        Raises `ConfigError`, naming the replica, where one is another model or has other weights than the others, and
        `EngineError` where none answers.
        """
        await self._fleet.connect()

    async def replace(self, index: int, engine: Engine) -> None:
        """Put another engine in the place of one, as after a restart: what was in flight there fails, the old engine is
        closed, the new one takes requests once it is found to be right."""
        await self._fleet.replace(index, engine)

    def leave_out(self, index: int) -> None:
        """Its server is known to be gone: it gets nothing before what comes back was found to be right."""
        gone = EngineError("unreachable", "its server went down", is_retryable=True)
        self._fleet.take_out(self._fleet.replicas[index], "suspect", gone)

    async def drain(self, index: int) -> None:
        """Give one replica nothing new and wait until it has nothing left; it stays out until it is replaced."""
        await self._fleet.drain(index)

    async def pause(self) -> None:
        await self._fleet.pause()

    async def resume(self) -> None:
        await self._fleet.resume()

    async def update_weights(self, source: str, version: int) -> None:
        """Load weights into all replicas. One that fails is left out until it has them; raises where all fail, and then
        nothing is acknowledged."""
        await self._fleet.update(ReplicaWeights(source, version))

    async def offload(self, tags: tuple[str, ...] = ()) -> None:
        await self._fleet.offload(tags)

    async def onload(self, tags: tuple[str, ...] = ()) -> None:
        await self._fleet.onload(tags)

    async def is_healthy(self) -> bool:
        """Whether any replica in service says so of itself."""
        return await self._fleet.is_healthy()


def _refuse_old(generation: Generation, version: int | None, replica: Replica) -> None:
    """Raises `EngineError` if any of it was sampled by weights older than those acknowledged when it was asked for."""
    sampled_by = oldest(generation)
    if version is not None and sampled_by is not None and sampled_by < version:
        raise EngineError(
            STALE,
            f"{replica.name} answered by weights of version {sampled_by}, version {version} is acknowledged; it is "
            "left out until it has them",
            is_retryable=True,
        )
