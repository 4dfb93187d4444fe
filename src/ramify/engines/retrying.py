"""Retrying: the one place where generations of an in-process engine are tried again.

It looks at every generation with `core.engine.checked` before anybody else does, gives a call up that takes longer than
its size can explain, and tries again where that may help: faults marked retryable, hangs, and turns the engine aborted.
A generation that came out unsound is not tried again: the same request would give the same one.
"""

import asyncio
import math
from dataclasses import dataclass
from typing import Final

from ramify.core.codec import Codec
from ramify.core.engine import Capabilities, Engine, Generation, Remote, Request, checked
from ramify.core.errors import ConfigError, EngineError, RamifyError
from ramify.core.seeds import child_seed
from ramify.engines.patience import Patience

JITTER_DRAW = (1 << 40) + 2
PATIENCE: Final = Patience()


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """When to give a call up and when to try again."""

    max_tries: int = 3
    """The first try included (`docs/engines.md`, retries)."""
    base_s: float = 0.5
    """Longest pause before the second try; it doubles each time (full jitter)."""
    cap_s: float = 30.0
    patience: Patience = PATIENCE
    """For engines that keep no deadlines of their own."""

    def __post_init__(self) -> None:
        if self.max_tries < 1 or min(self.base_s, self.cap_s) < 0:
            raise ConfigError(f"impossible retry policy {self!r}: at least 1 try, nothing negative")


class Retrying:
    """An engine in front of another one, the same but for tries, deadlines and checks. Counts both."""

    def __init__(self, engine: Engine, policy: RetryPolicy = RetryPolicy()) -> None:
        self._engine = engine
        self._policy = policy
        self.num_retries = 0
        self.num_wasted = 0
        """Tokens sampled in turns that the engine aborted."""

    @property
    def codec(self) -> Codec:
        return self._engine.codec

    @property
    def capabilities(self) -> Capabilities:
        return self._engine.capabilities

    async def generate(self, request: Request) -> Generation:
        """Carry one request out. Raises the `EngineError` of the last try."""
        for number in range(1, self._policy.max_tries):
            try:
                return await self._tried(request)
            except EngineError as error:
                if not error.is_retryable:
                    raise
            self.num_retries += 1
            await asyncio.sleep(
                backoff_s(number, seed=request.seed, base_s=self._policy.base_s, cap_s=self._policy.cap_s)
            )
        return await self._tried(request)

    async def connect(self) -> None:
        """Ask the engine's server what it is, if there is one."""
        if isinstance(self._engine, Remote):
            await self._engine.connect()

    async def close(self) -> None:
        await self._engine.close()

    async def _tried(self, request: Request) -> Generation:
        generation = checked(await self._in_time(request), request, self._engine.codec.vocab_size)
        if generation.finish.kind == "abort":
            self.num_wasted += generation.num_billed
            raise EngineError("engine_aborted", "the engine gave the turn up", is_retryable=True)
        return generation

    async def _in_time(self, request: Request) -> Generation:
        """Boundary to plug-in code: whatever an engine raises becomes an EngineError."""
        keeps_deadlines = self._engine.capabilities.keeps_deadlines
        deadline_s = math.inf if keeps_deadlines else self._policy.patience.deadline_s(request)
        scope = asyncio.timeout(None if keeps_deadlines else deadline_s)
        try:
            async with scope:
                return await self._engine.generate(request)
        except RamifyError:
            raise
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise EngineError("engine_raised", "it cancelled itself") from None
        except Exception as error:
            if scope.expired():
                raise EngineError("engine_hang", f"no answer in {deadline_s:.0f} s", is_retryable=True) from None
            raise EngineError("engine_raised", f"{type(error).__name__}: {error}") from error


def backoff_s(number: int, *, seed: int, base_s: float, cap_s: float) -> float:
    """Seconds to wait before try `number` + 1: uniform up to a limit that doubles; the same for the same seed."""
    limit = min(cap_s, base_s * 2 ** (number - 1))
    return limit * child_seed(seed, number, JITTER_DRAW) / 2**64
