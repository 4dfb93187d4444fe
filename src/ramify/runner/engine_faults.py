"""EngineFaults: turns what engines' servers refuse into events, and stops a run whose engine refuses everything.

Every try that fails is one event. A run stops if an engine has answered nothing yet and refused its first requests by
statuses 4xx, after which another try cannot help: the next thousand requests would be refused as well.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from ramify.core.engine import Request
from ramify.core.errors import EngineError, EngineUnusable
from ramify.engines.retrying import Retrying
from ramify.runner.events import EngineFault
from ramify.runner.remedies import remedy
from ramify.runner.sampler import DEADLINE

FIRST_REFUSALS: Final = 3
"""A run stops after so many refusals and no answer."""
OF_ALL: Final = frozenset({"http_401", "http_402", "http_403", "http_404", "http_405", "http_429"})
"""Refusals that do not depend on the request: the key, the account, the address, the model."""


@dataclass(slots=True)
class _Refusals:
    """What an engine refused before its first answer."""

    num: int = 0
    affinities: set[int] = field(default_factory=set[int])
    """The trees whose requests were refused."""


class EngineFaults:
    """Hears the faults of a run's engines. `num_trees` = trees of the run; 0 = as many as are asked for. Without
    `may_stop` it stops no run: `max_failed_share = 1` means to go on whatever fails."""

    def __init__(self, engines: Mapping[str, Retrying], *, num_trees: int, may_stop: bool = True) -> None:
        self._engines = engines
        self._may_stop = may_stop
        self._least_trees = 1 if num_trees == 1 else 2
        self.last = ""
        """What was said at the last fault."""
        self._refusals = {name: _Refusals() for name in engines}

    @property
    def are_silent(self) -> bool:
        """Whether requests were made and no engine has answered any."""
        every = self._engines.values()
        return any(engine.num_requests for engine in every) and not any(engine.num_answered for engine in every)

    @contextmanager
    def told(self, emit: Callable[[EngineFault], None]) -> Iterator[None]:
        """While this lasts, every fault of an engine is sent to `emit`."""
        before = {name: engine.on_fault for name, engine in self._engines.items()}
        for name, engine in self._engines.items():
            engine.on_fault = partial(self._hear, name, emit)
        try:
            yield
        finally:
            for name, engine in self._engines.items():
                engine.on_fault = before[name]

    def _hear(
        self,
        name: str,
        emit: Callable[[EngineFault], None],
        request: Request,
        fault: EngineError,
        pause_s: float | None,
    ) -> None:
        """Raises `EngineUnusable` if the run should stop."""
        if fault.reason == DEADLINE:
            return
        is_last = self._is_unusable(name, request, fault)
        self.last = said = fault.detail or fault.reason
        emit(EngineFault(name, fault.reason, said, request.request_id, pause_s, is_last))
        if is_last:
            raise EngineUnusable(fault.reason, refused(name, self._refusals[name].num, fault)) from None

    def _is_unusable(self, name: str, request: Request, fault: EngineError) -> bool:
        if (
            not self._may_stop
            or self._engines[name].num_answered
            or fault.is_retryable
            or not fault.reason.startswith("http_4")
        ):
            return False
        refusals = self._refusals[name]
        refusals.num += 1
        refusals.affinities.add(request.affinity)
        # A server may refuse one question for what it says. The questions of other trees say something else.
        is_of_all = fault.reason in OF_ALL or len(refusals.affinities) >= self._least_trees
        return refusals.num >= FIRST_REFUSALS and is_of_all


def refused(name: str, num: int, fault: EngineError) -> str:
    """The message of a run that stops because the engine `name` refused its first `num` requests."""
    helps = remedy(fault.reason, fault.detail, engine=name)
    lines = [f"engine {name!r} refused its first {num} requests, the last one so: {fault.detail}"]
    return "\n".join([*lines, *([f"try: {helps}"] if helps else [])])
