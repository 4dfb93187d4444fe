"""Weights: which weights a server samples with.

Nobody is told when a server is started anew, be it with older weights or with another model. So it is asked again
wherever a restart could lie between: behind a failure, and where no answer came for a while. Invariant: no token passes
that was sampled by weights which cannot be named where the server has names for them, by weights older than those it
had confirmed when it was asked, or by weights that were only half loaded.
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
"""No server is back sooner behind its end: what it said of its weights this long ago is asked again."""

Naming = Literal["answers", "asked", "none"]
"""Where versions are named: in every answer, by the server where it is asked, or nowhere."""
Spans = tuple[tuple[int, int], ...]
"""(version, number of tokens), in order."""


@dataclass(frozen=True, slots=True)
class Known:
    """What was known when a request was sent."""

    floor: int
    """Lowest version that may answer."""
    version: int | None
    """What the server said of itself; None = it was not asked."""
    num_changes: int
    num_breaks: int


class ServedWeights:
    """`ask` has the server say which model it runs, and which version where that is `asked`. It raises `ConfigError`
    for another model than ours."""

    def __init__(self, ask: Callable[[], Awaitable[int | None]]) -> None:
        self.naming: Naming = "none"
        self._ask = ask
        self._inquiry = Inquiry(self._asked, is_settled=self._is_fresh)
        self._acknowledged = 0
        """Version of the last update that the server confirmed; answers of a lower one are refused."""
        self._version: int | None = None
        self._is_known = False
        self._heard_at = -math.inf
        """When it was last certain that the server is still the one that was asked."""
        self._num_changes = 0
        """Times the weights became others."""
        self._num_breaks = 0
        """Times an update ended in the middle."""
        self._fault = ""
        """Why the server's weights are nobody's; '' = they are somebody's."""

    @property
    def are_broken(self) -> bool:
        return bool(self._fault)

    # -- what becomes of them ----------------------------------------------------------------------------------------

    def confirm(self, version: int) -> None:
        """The server has `version` from now on, by its own word."""
        self._acknowledged, self._fault = version, ""
        self._num_changes += 1
        self._learn(version)

    def break_off(self, fault: str) -> None:
        """The weights are half loaded, or gone: no token counts before the next update is confirmed."""
        self._fault = fault
        self._num_breaks += 1

    def forget(self) -> None:
        """The server may be another one than was asked."""
        self._is_known = False

    # -- one answer --------------------------------------------------------------------------------------------------

    async def known(self) -> Known:
        """What holds for a request that is sent now. Raises `EngineError`."""
        self._refuse_broken()
        await self._inquiry.settle()
        self._refuse_broken()
        version = self._version if self.naming == "asked" else None
        if version is not None:
            self._refuse_stale(version, self._acknowledged)
        return Known(self._acknowledged, version, self._num_changes, self._num_breaks)

    async def spans(self, sampled: Sampled, known: Known) -> Spans:
        """Which versions sampled an answer to what was sent when that was `known`. Raises `EngineError`."""
        if not self._is_known:
            await self._inquiry.settle()
        if known.num_breaks != self._num_breaks:
            raise EngineError("mixed_versions", "a weight update stopped halfway", is_retryable=True)
        spans = sampled.versions or self._span(sampled, known)
        self._refuse_stale(min((version for version, _ in spans), default=known.floor), known.floor)
        self._heard_at = asyncio.get_running_loop().time()
        return spans

    def _span(self, sampled: Sampled, known: Known) -> Spans:
        """The version of an answer that names none."""
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
        """Whether no restart can lie between now and what is known."""
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
