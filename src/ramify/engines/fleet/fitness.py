"""Fitness: the conditions for a replica to take requests, and the steps that restore them.

A fit replica runs the same model as the others, is awake, reports that it is healthy, samples a token, and has, as far
as anybody can tell, the weights that were acknowledged last. `fleet.py` decides which replica is checked, and when.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from ramify.core.engine import Engine
from ramify.core.errors import ConfigError, EngineError, RamifyError
from ramify.engines.fleet.identity import Identity
from ramify.engines.fleet.replica import Replica, ReplicaWeights

STALE: Final = "stale_weights"
"""The error reason for an answer from older weights than the acknowledged ones, whoever detects it."""


class Fitness:
    """The conditions for the replicas of one model. Mutable."""

    def __init__(self, engine: Engine) -> None:
        self.identity = Identity.of(engine)
        self.version: int | None = None
        """Version of the weights acknowledged last: requests sampled by older ones are refused. None = nothing is
        known."""
        self.wanted: ReplicaWeights | None = None
        """The weights that every replica in service has loaded or is loading. None = those its server started with."""
        self._is_met = False
        """Whether `identity` comes from a server's answer."""

    def meet(self, replicas: Sequence[Replica]) -> None:
        """Call this when the replicas have said what they run: all must equal the first. Raises `ConfigError` for one
        that differs."""
        self.identity, self._is_met = Identity.of(replicas[0].engine), True
        for replica in replicas:
            self.identity.refuse_another(replica.engine, replica.name)

    def stale(self, versions: Mapping[Replica, int | None]) -> dict[Replica, EngineError]:
        """The replicas whose weights are older than the wanted ones, with their error; if no weights are wanted, older
        than the newest. In that case an older replica raises `ConfigError`, because nobody knows how to load the newest
        weights."""
        known = {replica: version for replica, version in versions.items() if version is not None}
        newest = max(known.values(), default=None) if self.wanted is None else self.wanted.version
        faults = {
            replica: f"{replica.name} has weights of version {version}, others of version {newest}"
            for replica, version in known.items()
            if newest is not None and version < newest
        }
        if faults and self.wanted is None:
            raise ConfigError(f"{next(iter(faults.values()))}; load the same into all of them")
        self.version = newest
        return {replica: EngineError(STALE, said) for replica, said in faults.items()}

    async def fault(self, replica: Replica) -> Exception | None:
        """What is wrong with a replica; None = nothing. Repairs what it can. Boundary to plug-in code: a replica that
        raises anything is not fit."""
        try:
            return await self._fault(replica)
        except RamifyError as error:
            return error
        except Exception as error:  # noqa: BLE001
            return EngineError("engine_raised", f"{type(error).__name__}: {error}")

    async def _fault(self, replica: Replica) -> EngineError | None:
        if replica.is_torn and self.wanted is not None:
            await replica.update(self.wanted)  # If awake, it would sample with half-loaded weights.
        await replica.wake()
        await replica.connect()
        if self._is_met:
            self.identity.refuse_another(replica.engine, replica.name)
        await replica.check_health()
        if not await self._is_behind(replica):
            return None
        if self.wanted is not None:
            await replica.update(self.wanted)
            if not await self._is_behind(replica):
                return None
        return EngineError(STALE, f"{replica.name} has other weights than the acknowledged ones")

    async def _is_behind(self, replica: Replica) -> bool:
        """Sample a token; returns whether other weights than the wanted ones sampled it."""
        try:
            version = await replica.probe()
        except EngineError as error:
            if error.reason == STALE:
                return True
            raise
        wanted = self.wanted
        if replica.weights not in (None, wanted):
            return True
        if version is None:
            return wanted is not None and replica.weights is None
        needed = self.version if wanted is None else wanted.version
        return needed is not None and version < needed
