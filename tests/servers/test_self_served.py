import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.servers.programs import PROBE, QUICK, is_alive, program, tell, until

from ramify.core.codec import ByteCodec, Codec
from ramify.core.engine import Capabilities, Generation, Request
from ramify.core.errors import ContractError, EngineError
from ramify.core.segment import Finish
from ramify.edge.http import Http
from ramify.engines.fleet.replicas import Replicas
from ramify.servers.home import Here, Home
from ramify.servers.member import Care
from ramify.servers.self_served import NOWHERE, SelfServed
from ramify.servers.server_pool import ServerPool

CONTEXT = np.array([1, 2], np.int32)


class Says:
    """An engine of the small servers: says which process answered."""

    def __init__(self, url: str) -> None:
        self.codec: Codec = ByteCodec()
        self.url = url
        self.is_closed = False
        self._http = Http(url)

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities("says", 1024, keeps_deadlines=True)

    async def connect(self) -> None:
        await self._http.get("/health", deadline_s=5)

    async def generate(self, request: Request) -> Generation:
        answer: dict[str, Any] = json.loads(await self._http.get("/health", deadline_s=5))
        ids = np.array(self.codec.encode(str(answer["pid"])), np.int32)[: request.max_tokens]
        return Generation(ids, Finish("length"), num_billed=len(ids))

    async def close(self) -> None:
        self.is_closed = True
        await self._http.close()


class Served:
    """A self-served engine, with all engines and pools it made."""

    def __init__(self, tmp_path: Path, *, count: int = 2, care: Care = QUICK, **options: object) -> None:
        self.engines: list[Says] = []
        self.pools: list[ServerPool] = []
        self._tmp_path = tmp_path
        self._count = count
        self._care = care
        self._options = options
        self.engine = SelfServed(self._build, self._pool)

    def _build(self, url: str) -> Says:
        self.engines.append(Says(url))
        return self.engines[-1]

    async def _pool(self, observe: Any) -> ServerPool:
        pool = ServerPool(
            Here(program(**self._options), home=Home(logs=self._tmp_path / "logs")),
            count=self._count,
            probe=PROBE,
            care=self._care,
            observe=observe,
        )
        self.pools.append(pool)
        return pool

    async def pid(self, seed: int) -> int:
        """Which process answers."""
        said = await self.engine.generate(Request(CONTEXT, max_tokens=16, seed=seed, affinity=seed))
        return int(self.engine.codec.decode(said.ids))


@pytest.mark.covers("S3.2")
async def test_servers_start_with_the_engine_and_stop_behind_it(tmp_path: Path):
    served = Served(tmp_path)
    assert [engine.url for engine in served.engines] == [NOWHERE]
    assert served.engine.capabilities.name == "says"
    with pytest.raises(ContractError, match="connect it before"):
        await served.pid(0)
    await asyncio.gather(served.engine.connect(), served.engine.connect())
    await served.engine.connect()
    pids = served.pools[0].pids
    assert len(pids) == 2
    assert await served.pid(1) in pids
    await served.engine.close()
    await served.engine.close()
    assert not any(is_alive(pid) for pid in pids if pid)
    assert len(served.engines) == 3 and all(engine.is_closed for engine in served.engines)


async def test_an_engine_that_is_never_connected_starts_nothing(tmp_path: Path):
    served = Served(tmp_path)
    await served.engine.close()
    assert not (tmp_path / "logs").exists()


async def test_a_server_that_cannot_start_ends_the_connection_with_its_log(tmp_path: Path):
    served = Served(tmp_path, dies="gpt-7")
    with pytest.raises(EngineError, match=r"(?s)exit code 1 at its start.*no such model: gpt-7"):
        await served.engine.connect()
    await served.engine.close()


@pytest.mark.slow
async def test_a_server_that_is_started_again_is_used_again(tmp_path: Path):
    served = Served(tmp_path, count=1)
    await served.engine.connect()
    try:
        first = await served.pid(0)
        await tell(served.engines[-1].url, "/die")
        await until(lambda: len(served.engines) == 3 and served.engines[1].is_closed)
        answers = asyncio.create_task(answer_of(served))
        assert await answers not in (first, None)
    finally:
        await served.engine.close()


async def test_a_server_that_went_down_is_out_of_service_before_anybody_asks_it(tmp_path: Path):
    served = Served(tmp_path, count=1, care=replace(QUICK, base_s=60.0))
    await served.engine.connect()
    try:
        replicas = served.engine.engine
        assert isinstance(replicas, Replicas)
        await tell(served.engines[-1].url, "/die")
        await until(lambda: replicas.stats[0].state == "suspect")
        assert replicas.stats[0].num_requests == 0
    finally:
        await served.engine.close()


async def answer_of(served: Served) -> int | None:
    """The first good answer of those to come."""
    for seed in range(200):
        try:
            return await served.pid(seed)
        except EngineError:
            await asyncio.sleep(0.05)
    return None


async def test_a_close_that_is_cancelled_kills_the_servers(tmp_path: Path):
    served = Served(tmp_path, deaf=True)
    await served.engine.connect()
    pids = served.pools[0].pids
    closing = asyncio.create_task(served.engine.close())
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert not any(is_alive(pid) for pid in pids if pid)
