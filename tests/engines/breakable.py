"""Breakable: a scripted engine whose server can die, hang, be busy, and come back with whatever weights."""

import asyncio
from typing import Any

from ramify.core.codec import Codec
from ramify.core.engine import Capabilities, Generation, Request
from ramify.core.errors import EngineError
from ramify.testing.scripted import Scripted


class Breakable:
    """Implements `Engine`, `Remote` and `EngineControl`. `options` are `Scripted`'s."""

    def __init__(self, script: Any = lambda turn: "ok", **options: Any) -> None:
        self.inner = Scripted(script, **options)
        self.down: str | None = None
        """Why every exchange fails; None = none does. `hang` = none is ever answered."""
        self.busy_s: float | None = None
        """What it asks for instead of answering."""
        self.is_unwell = False
        self.is_paused = False
        self.is_closed = False
        self.rejects: str | None = None
        """Source of weights that it does not take."""
        self.loaded: list[tuple[str, int]] = []
        self.looks: list[float] = []
        """When it was asked what it is."""
        self._life = 0
        self._speaks = asyncio.Event()
        self._speaks.set()

    @property
    def codec(self) -> Codec:
        return self.inner.codec

    @property
    def capabilities(self) -> Capabilities:
        return self.inner.capabilities

    def die(self, reason: str = "unreachable") -> None:
        """What is in flight breaks off when it would have been answered."""
        self.down, self._life = reason, self._life + 1

    def come_back(self, *, version: int | None = None) -> None:
        self.down, self.inner.version = None, version
        self._speaks.set()

    def fall_silent(self) -> None:
        """Take requests, answer none and say that all is well, until it comes back."""
        self._speaks.clear()

    async def generate(self, request: Request) -> Generation:
        life = self._life
        await self._exchange()
        if self.busy_s is not None:
            raise EngineError("busy", "come again", is_retryable=True, retry_after_s=self.busy_s)
        while self.is_paused:  # noqa: ASYNC110 - a server holds requests that way
            await asyncio.sleep(0.1)
        generation = await self.inner.generate(request)
        await self._speaks.wait()
        if self._life != life:
            raise EngineError("disconnected", "the server died", is_retryable=True)
        return generation

    async def connect(self) -> None:
        self.looks.append(asyncio.get_running_loop().time())
        await self._exchange()

    async def close(self) -> None:
        self.is_closed = True
        await self.inner.close()

    async def pause(self) -> None:
        await self._exchange()
        self.is_paused = True

    async def resume(self) -> None:
        await self._exchange()
        self.is_paused = False

    async def offload(self, tags: tuple[str, ...] = ()) -> None:
        await self.pause()

    async def onload(self, tags: tuple[str, ...] = ()) -> None:
        await self.resume()

    async def update_weights(self, source: str, version: int) -> None:
        await self._exchange()
        if source == self.rejects:
            raise EngineError("http_500", "no such weights", is_retryable=True)
        self.loaded.append((source, version))
        if self.inner.version is not None:
            self.inner.version = version

    async def is_healthy(self) -> bool:
        await self._exchange()
        return not self.is_unwell

    async def _exchange(self) -> None:
        if self.down == "hang":
            await asyncio.Event().wait()
        if self.down is not None:
            raise EngineError(self.down, "planned", is_retryable=True)


class Uncontrolled:
    """A scripted engine, and nothing but an `Engine`: no control side, no aborts."""

    def __init__(self, **options: Any) -> None:
        self.inner = Scripted(**options)

    @property
    def codec(self) -> Codec:
        return self.inner.codec

    @property
    def capabilities(self) -> Capabilities:
        return self.inner.capabilities

    async def generate(self, request: Request) -> Generation:
        return await self.inner.generate(request)

    async def close(self) -> None:
        await self.inner.close()
