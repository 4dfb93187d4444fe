"""Batched: an engine whose model runs in this process, behind a batching loop.

It holds what such engines share: token generation by the loop, their capabilities, and the control methods that do not
touch weights. A subclass adds the model and the methods that replace, move and drop its weights.
"""

from ramify.core.codec import Codec
from ramify.core.engine import Capabilities, Generation, Request
from ramify.engines.batching import MEASURES, BatchingLoop
from ramify.engines.batching_stats import Stats


class Batched:
    """Implements `Engine` and `Abortable` over `loop`."""

    def __init__(self, name: str, loop: BatchingLoop, codec: Codec, *, is_deterministic: bool) -> None:
        self._loop = loop
        self._codec = codec
        self._capabilities = Capabilities(
            name=name,
            context_length=loop.context_length,
            logprobs="raw",
            measures=MEASURES,
            max_topk=codec.vocab_size,
            has_seeds=True,
            is_deterministic=is_deterministic,
            has_abort=True,
            has_versions=True,
        )

    @property
    def codec(self) -> Codec:
        return self._codec

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    @property
    def stats(self) -> Stats:
        """Counts of what the engine has done so far; updated while it runs."""
        return self._loop.stats

    async def generate(self, request: Request) -> Generation:
        """Run one request. Raises `EngineError`."""
        return await self._loop.generate(request)

    async def abort(self, request_id: str) -> None:
        """End every request with this id between two steps. It returns the tokens it had."""
        self._loop.abort(request_id)

    async def close(self) -> None:
        await self._loop.close()

    async def pause(self) -> None:
        """Stop computing until `resume`; running requests wait."""
        self._loop.pause()

    async def resume(self) -> None:
        self._loop.resume()

    async def is_healthy(self) -> bool:
        return not self._loop.is_closed
