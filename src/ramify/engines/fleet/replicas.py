"""Replicas: several servers of one model as one engine.

Decides where a request goes (by the rule of `placement.py`, among the replicas that `fleet.py` has in service) and how
to handle its failure. A failed replica gets no new requests until a check finds it fit again. An answer from weights
older than the acknowledged ones is discarded. Every failure becomes an error for `Retrying`, which wraps this engine;
nothing is retried here. If a replica is lost, its running requests lose none of their tries. Invariant: while one
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
"""Failures in a row, of any kind, that make a replica suspect. Otherwise a replica that fails at once would always be
the least loaded and get all requests."""
MAX_LOSSES: Final = 3
"""Replicas that may be lost while running the same request, without costing it a try. At the next loss the request
fails for good, because it may be the cause. It gets as many tries in all as for other faults
(`RetryPolicy.max_tries`)."""
MAX_LOST: Final = 1 << 16
"""Maximum number of requests whose losses are remembered."""


class Replicas:
    """An engine that places each request on one of its replicas.

    Implements `Remote`, `Abortable` and `EngineControl`; the control methods raise `ConfigError` if an engine has none.
    `max_in_flight` is how many requests one replica computes at once. `names` identify replicas in errors and
    statistics. `patience` is for engines that enforce no deadlines themselves.
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
        """Id of a request -> number of replicas lost while running it."""
        self._is_closed = False

    @property
    def codec(self) -> Codec:
        return self._fleet.fitness.identity.codec

    @property
    def capabilities(self) -> Capabilities:
        return self._fleet.fitness.identity.capabilities

    @property
    def stats(self) -> tuple[ReplicaStats, ...]:
        """Statistics of each replica so far, in order."""
        return tuple(
            replace(replica.stats, in_flight=num)
            for replica, num in zip(self._fleet.replicas, self._load.in_flight, strict=True)
        )

    # -- requests -----------------------------------------------------------------------------------------------------

    async def generate(self, request: Request) -> Generation:
        """Run one request on one replica. Raises `EngineError`: `unreachable` if none is in service."""
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
        """End every request with this id; it returns what it had. On an engine that cannot say this, it returns no
        tokens."""
        for replica in self._fleet.replicas:
            if replica.has(request_id):
                await replica.abort(request_id)

    async def close(self) -> None:
        """Close every replica, and stop their recovery tasks. Calling it again does nothing."""
        self._is_closed = True
        await self._fleet.close()

    def _count(self, generation: Generation, seat: Seat, replica: Replica) -> None:
        replica.num_in_a_row = replica.num_strikes = 0
        replica.stats.num_requests += 1
        replica.stats.num_spills += seat.is_spill
        replica.stats.prefill_cached += generation.num_cached
        replica.stats.prefill_uncached += generation.num_prefilled

    def _count_failure(self, error: EngineError, replica: Replica) -> None:
        """Take a replica out of service if it is to blame."""
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
        """The error, marked with what another try costs: nothing if only this replica failed and others take
        requests."""
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
        """How many replicas were lost while running this request, including this time."""
        if error.reason == "unreachable" or not request.request_id:
            return 0
        self._lost[request.request_id] = num = self._lost.get(request.request_id, 0) + 1
        while len(self._lost) > MAX_LOST:
            self._lost.popitem(last=False)
        return num

    # -- the fleet ----------------------------------------------------------------------------------------------------

    async def connect(self) -> None:
        """Ask every replica what it runs. A replica that does not answer is left out until it does.

        Raises `ConfigError`, which names the replica, if one runs another model or has other weights than the others,
        and `EngineError` if none answers.
        """
        await self._fleet.connect()

    async def replace(self, index: int, engine: Engine) -> None:
        """Replace the engine of one replica, as after a restart. Its running requests fail, the old engine is closed,
        and the new one takes requests once a check finds it fit."""
        await self._fleet.replace(index, engine)

    def leave_out(self, index: int) -> None:
        """Take a replica out whose server is known to be down. It gets no requests until a check finds its successor
        fit."""
        gone = EngineError("unreachable", "its server went down", is_retryable=True)
        self._fleet.take_out(self._fleet.replicas[index], "suspect", gone)

    async def drain(self, index: int) -> None:
        """Give one replica no new requests and wait until it has none left. It stays out until it is replaced."""
        await self._fleet.drain(index)

    async def pause(self) -> None:
        await self._fleet.pause()

    async def resume(self) -> None:
        await self._fleet.resume()

    async def update_weights(self, source: str, version: int) -> None:
        """Load weights into all replicas. A replica that fails is left out until it has them. If all fail, this raises
        and no version is acknowledged."""
        await self._fleet.update(ReplicaWeights(source, version))

    async def offload(self, tags: tuple[str, ...] = ()) -> None:
        await self._fleet.offload(tags)

    async def onload(self, tags: tuple[str, ...] = ()) -> None:
        await self._fleet.onload(tags)

    async def is_healthy(self) -> bool:
        """Whether any replica in service reports that it is healthy."""
        return await self._fleet.is_healthy()


def _refuse_old(generation: Generation, version: int | None, replica: Replica) -> None:
    """Raises `EngineError` if older weights sampled any of it than those acknowledged when it was requested."""
    sampled_by = oldest(generation)
    if version is not None and sampled_by is not None and sampled_by < version:
        raise EngineError(
            STALE,
            f"{replica.name} answered by weights of version {sampled_by}, version {version} is acknowledged; it is "
            "left out until it has them",
            is_retryable=True,
        )
