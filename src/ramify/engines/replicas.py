"""Replicas: several servers of one model as one engine."""

import asyncio
from collections.abc import Sequence
from typing import Literal

from ramify.core.codec import Codec
from ramify.core.engine import Capabilities, Engine, Generation, Remote, Request


class Replicas:
    """An engine that places each request on one of its replicas."""

    def __init__(self, engines: Sequence[Engine], *, placement: Literal["prefix", "round_robin"] = "prefix") -> None:
        self._engines = list(engines)
        self._placement = placement
        self._next = 0

    @property
    def codec(self) -> Codec:
        return self._engines[0].codec

    @property
    def capabilities(self) -> Capabilities:
        return self._engines[0].capabilities

    async def connect(self) -> None:
        await asyncio.gather(*(e.connect() for e in self._engines if isinstance(e, Remote)))

    async def generate(self, request: Request) -> Generation:
        self._next += 1
        return await self._engines[self._next % len(self._engines)].generate(request)

    async def close(self) -> None:
        await asyncio.gather(*(engine.close() for engine in self._engines))
