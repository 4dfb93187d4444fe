"""Weights: which weights a server samples with.

Nobody is told when a server is restarted, perhaps with older weights or another model. So this class asks it again
whenever it may have restarted: after a failure, and after some time without an answer. Invariant: it accepts no token
that was sampled by weights older than the version confirmed when the request was sent, by half-loaded weights, or, if
the server names its versions, by weights without a name.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, Literal

from ramify.core.errors import ConfigError, EngineError
from ramify.engines.served.inquiry import Inquiry
from ramify.engines.served.turn import Sampled

RESTART_S: Final = 5.0
"""A restart takes at least this long: if the last answer is older than this, the server is asked again."""

Naming = Literal["answers", "asked", "none"]
"""Where versions are named: in every answer, by the server when it is asked, or nowhere."""
Spans = tuple[tuple[int, int], ...]
"""(version, number of tokens), in order."""


@dataclass(frozen=True, slots=True)
class Known:
    """What was known when a request was sent."""

    floor: int
    """Lowest version that may answer."""
    version: int | None
    """The version that the server named; None = it was not asked."""
    num_changes: int
    num_breaks: int


class ServedWeights:
    """Tracks the weights of one server. `ask` asks the server for its model and, if `naming` is `asked`, its version.
    It raises `ConfigError` if the model is not ours."""

    def __init__(self, ask: Callable[[], Awaitable[int | None]]) -> None:
        self.naming: Naming = "none"
        self._ask = ask
        self._inquiry = Inquiry(self._asked, is_settled=self._is_fresh)
        self._acknowledged = 0
        """Version of the last update that the server confirmed; answers with a lower one are refused."""
        self._version: int | None = None
        self._is_known = False
        self._heard_at = -math.inf
        """When the server was last known to be the one that was asked."""
        self._num_changes = 0
        """How often the weights changed."""
        self._num_breaks = 0
        """How often an update stopped halfway."""
        self._fault = ""
        """Why the server's weights cannot be used; '' = they can."""

    @property
    def are_broken(self) -> bool:
        return bool(self._fault)

    # -- what becomes of them ----------------------------------------------------------------------------------------

    def confirm(self, version: int) -> None:
        """The server has confirmed that it has `version` from now on."""
        self._acknowledged, self._fault = version, ""
        self._num_changes += 1
        self._learn(version)

    def break_off(self, fault: str) -> None:
        """The weights are half loaded, or were dropped: no token counts until the next update is confirmed."""
        self._fault = fault
        self._num_breaks += 1

    def forget(self) -> None:
        """The server may have been restarted or replaced since it was asked."""
        self._is_known = False

    # -- one answer --------------------------------------------------------------------------------------------------

    async def known(self) -> Known:
        """What is known for a request that is sent now. Raises `EngineError`."""
        self._refuse_broken()
        await self._inquiry.settle()
        self._refuse_broken()
        version = self._version if self.naming == "asked" else None
        if version is not None:
            self._refuse_stale(version, self._acknowledged)
        return Known(self._acknowledged, version, self._num_changes, self._num_breaks)

    async def spans(self, sampled: Sampled, known: Known) -> Spans:
        """Which versions sampled an answer to a request that was sent with `known`. Raises `EngineError`."""
        if not self._is_known:
            await self._inquiry.settle()
        if known.num_breaks != self._num_breaks:
            raise EngineError("mixed_versions", "a weight update stopped halfway", is_retryable=True)
        spans = sampled.versions or self._span(sampled, known)
        self._refuse_stale(min((version for version, _ in spans), default=known.floor), known.floor)
        self._heard_at = asyncio.get_running_loop().time()
        return spans

    def _span(self, sampled: Sampled, known: Known) -> Spans:
        """The version of an answer that names no versions of its tokens."""
        if self.naming == "none" or not sampled.ids:
            return ()
        if known.version is None:
            raise EngineError("bad_versions", "the answer does not say which weights sampled it")
        told = self._version if sampled.version is None else sampled.version
        if known.num_changes != self._num_changes or told != known.version:
            self._is_known = False
            raise EngineError(
                "mixed_versions", f"version {known.version} became {told} during the request", is_retryable=True
            )
        return ((known.version, len(sampled.ids)),)

    def _refuse_stale(self, version: int, floor: int) -> None:
        if version < floor:
            self._is_known = False
            raise EngineError(
                "stale_weights", f"the server has version {version}; it had confirmed {floor}", is_retryable=True
            )

    def _refuse_broken(self) -> None:
        if self._fault:
            raise EngineError("stale_weights", f"{self._fault}; update_weights is needed", is_retryable=True)

    # -- what the server says ----------------------------------------------------------------------------------------

    def _is_fresh(self) -> bool:
        """Whether the server cannot have restarted since the last known answer."""
        return self._is_known and asyncio.get_running_loop().time() - self._heard_at <= RESTART_S

    async def _asked(self) -> None:
        try:
            version = await self._ask()
        except ConfigError as error:
            raise EngineError("other_model", str(error)) from error
        self._num_changes += version != self._version
        self._learn(version)

    def _learn(self, version: int | None) -> None:
        self._version, self._is_known = version, True
        self._heard_at = asyncio.get_running_loop().time()
