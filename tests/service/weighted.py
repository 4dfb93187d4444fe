"""An engine of the small servers that knows by which weights it answers."""

import numpy as np

from ramify.core.codec import ByteCodec, Codec
from ramify.core.engine import Capabilities, Generation, Request
from ramify.core.segment import Finish
from ramify.edge.http import Http
from ramify.engines.fleet.replicas import Replicas
from ramify.servers.self_served import SelfServed


class Weighted:
    """Says the version of the weights that it was given."""

    def __init__(self, url: str) -> None:
        self.codec: Codec = ByteCodec()
        self.url = url
        self.version = 0
        self._http = Http(url)

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities("weighted", 1024, keeps_deadlines=True, has_versions=True)

    async def connect(self) -> None:
        await self._http.get("/health", deadline_s=5)

    async def generate(self, request: Request) -> Generation:
        await self._http.get("/health", deadline_s=5)
        ids = np.array(self.codec.encode(str(self.version)), np.int32)
        return Generation(ids, Finish("length"), num_billed=len(ids), versions=((self.version, len(ids)),))

    async def pause(self) -> None: ...

    async def resume(self) -> None: ...

    async def update_weights(self, source: str, version: int) -> None:
        self.version = version

    async def offload(self, tags: tuple[str, ...] = ()) -> None: ...

    async def onload(self, tags: tuple[str, ...] = ()) -> None: ...

    async def is_healthy(self) -> bool:
        return True

    async def close(self) -> None:
        await self._http.close()


def is_in_service(engine: SelfServed) -> bool:
    """Whether every replica takes requests."""
    replicas = engine.engine
    return isinstance(replicas, Replicas) and all(stats.state == "ready" for stats in replicas.stats)
