"""In front: the base of engines that wrap another engine and change only `generate`.

Everything else of the inner engine is passed through: asking its server, aborts, the control methods. If the inner
engine lacks one of them, calling it raises an error that names what is missing.
"""

import numpy as np

from ramify.core.codec import Codec
from ramify.core.engine import Abortable, Capabilities, Engine, EngineControl, Generation, Remote, Request
from ramify.core.errors import ConfigError
from ramify.core.segment import Finish, token_array


class InFront:
    """Everything of an engine except `generate`, passed on to `engine`."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    @property
    def codec(self) -> Codec:
        return self.engine.codec

    @property
    def capabilities(self) -> Capabilities:
        return self.engine.capabilities

    async def connect(self) -> None:
        """Ask the engine's server what it runs, if there is a server."""
        if isinstance(self.engine, Remote):
            await self.engine.connect()

    async def close(self) -> None:
        await self.engine.close()

    async def abort(self, request_id: str) -> None:
        """End every request with this id; it returns what it had. Raises `ConfigError` if the engine cannot do this."""
        if not isinstance(self.engine, Abortable):
            raise ConfigError(f"engine {self.capabilities.name!r} cannot end a request early: it is not Abortable")
        await self.engine.abort(request_id)

    async def pause(self) -> None:
        await self._controlled.pause()

    async def resume(self) -> None:
        await self._controlled.resume()

    async def update_weights(self, source: str, version: int) -> None:
        await self._controlled.update_weights(source, version)

    async def offload(self, tags: tuple[str, ...] = ()) -> None:
        await self._controlled.offload(tags)

    async def onload(self, tags: tuple[str, ...] = ()) -> None:
        await self._controlled.onload(tags)

    async def is_healthy(self) -> bool:
        return await self._controlled.is_healthy()

    @property
    def _controlled(self) -> EngineControl:
        """The engine's control methods. Raises `ConfigError` if it has none."""
        if not isinstance(self.engine, EngineControl):
            raise ConfigError(f"engine {self.capabilities.name!r} has no control side: it is not an EngineControl")
        return self.engine


def innermost(engine: Engine) -> Engine:
    """The engine inside all its wrappers."""
    while isinstance(engine, InFront):
        engine = engine.engine
    return engine


def nothing(request: Request, engine: Engine) -> Generation:
    """The generation of a request that was ended before its first token, or whose engine cannot say what it had."""
    empty = np.zeros(0, np.float32)
    return Generation(
        ids=token_array([]),
        finish=Finish("abort"),
        logprobs=None if engine.capabilities.logprobs is None else empty,
        measures=dict.fromkeys(request.measures, empty),
    )
