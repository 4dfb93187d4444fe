"""Engines of several members: small real servers at two addresses of this machine, which stand for nodes."""

import asyncio
import json
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
from tests.servers.engine_folders import engine_python
from tests.servers.programs import QUICK, answered, is_alive, kill, marked, until
from tests.service.weighted import Weighted, is_in_service

from ramify.config.run_config import EngineConfig
from ramify.core.engine import Remote, Request
from ramify.core.errors import ConfigError, EngineError
from ramify.servers.launch import Launch
from ramify.servers.member import Care
from ramify.servers.pool import member_process
from ramify.servers.pool.config import PoolConfig
from ramify.servers.pool.engines import free_here
from ramify.servers.pool.member_process import MemberLost, MemberProcess
from ramify.servers.pool.multi_node import Spread
from ramify.servers.pool.plan import EngineMember, EnginePlan, PoolNode, PoolPlan, plan
from ramify.servers.self_served import SelfServed
from ramify.servers.server_config import ServerConfig
from ramify.servers.server_pool import Down, Event, ServerPool, Up
from ramify.service.build import pooled

T = TypeVar("T")

HOSTS = ("127.0.0.1", "127.0.0.2")
TWO_NODES = PoolConfig(num_gpus=4, num_gpus_per_engine=4, num_gpus_per_node=2)


def planned() -> PoolPlan:
    return plan(TWO_NODES, [PoolNode(host=host, gpus=(4, 5)) for host in HOSTS], free=free_here)


def launch(tmp_path: Path, **options: object) -> Launch:
    python = tmp_path / "engine" / "bin" / "python"
    if not python.exists():
        engine_python(tmp_path / "engine", ["vllm", "vllm of other nodes"])
    environment = {"TEST_OPTIONS": json.dumps(options), "TEST_MARK": str(tmp_path)}
    return Launch(model="m", config=ServerConfig(python=str(python), device="gpu", environment=environment))


class Served:
    """A pool of one engine on two nodes, whose members are in this process; `by_rank` has other launches of some."""

    def __init__(
        self,
        tmp_path: Path,
        *,
        by_rank: dict[int, Launch] | None = None,
        kind: type[MemberProcess] = MemberProcess,
        care: Care = QUICK,
        observe: Callable[[Event], None] = lambda event: None,
    ) -> None:
        self.events: list[Event] = []
        self.plan = planned()
        self.members: list[MemberProcess] = []
        self._observe = observe
        usual = launch(tmp_path)

        def member(engine: EnginePlan, member: EngineMember) -> MemberProcess:
            configured = (by_rank or {}).get(member.rank, usual)
            self.members.append(kind(engine, member, configured, tmp_path / "logs"))
            return self.members[-1]

        spread = Spread(self.plan, member, close=self._close)
        self.pool = ServerPool(spread, count=1, probe=usual.probe, care=care, observe=self._keep)

    def of(self, kind: type[Event]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    async def said(self) -> list[dict[str, Any]]:
        """What the server of each member says of itself, as soon as it listens; the pool waits for the head only."""
        return [await answered(member.address.url) for member in self.plan.members]

    def _keep(self, event: Event) -> None:
        self.events.append(event)
        self._observe(event)

    def _close(self) -> None:
        for member in self.members:
            member.close()


@pytest.mark.covers("S3.2")
async def test_the_members_of_an_engine_are_started_by_the_plan_and_asked_at_node_0(tmp_path: Path):
    served = Served(tmp_path)
    urls = await served.pool.start()
    try:
        assert urls == served.plan.heads == (served.plan.members[0].address.url,)
        head, other = await served.said()
        assert served.pool.pids == (head["pid"],)
        assert [said["environment"]["CUDA_VISIBLE_DEVICES"] for said in (head, other)] == ["4,5", "4,5"]
        assert [said["environment"]["VLLM_HOST_IP"] for said in (head, other)] == list(HOSTS)
        for rank, said in enumerate((head, other)):
            flags = said["argv"]
            assert flags[flags.index("--node-rank") + 1] == str(rank)
            assert flags[flags.index("--master-addr") + 1] == HOSTS[0]
        assert "--headless" in other["argv"] and "--headless" not in head["argv"]
        assert sorted(path.name for path in (tmp_path / "logs").iterdir()) == [
            "engine-0-node-0.1.log",
            "engine-0-node-1.1.log",
        ]
    finally:
        await served.pool.stop()
    assert not marked(tmp_path)


@pytest.mark.slow
@pytest.mark.covers("S3.2")
@pytest.mark.parametrize("rank", [0, 1])
async def test_a_member_that_dies_takes_its_engine_along_and_all_are_started_again(tmp_path: Path, rank: int):
    served = Served(tmp_path)
    await served.pool.start()
    try:
        before = [said["pid"] for said in await served.said()]
        kill(before[rank])
        await until(lambda: len(served.of(Up)) == 2)
        (down,) = served.of(Down)
        assert f"it ended with exit code -9; engine-0-node-{rank}: its log " in down.reason
        assert not any(map(is_alive, before))
        after = await served.said()
        assert served.pool.pids == (after[0]["pid"],)
        assert [said["environment"]["CUDA_VISIBLE_DEVICES"] for said in after] == ["4,5", "4,5"]
        assert served.of(Up)[0].url == served.of(Up)[1].url
    finally:
        await served.pool.stop()
    assert not marked(tmp_path)


@pytest.mark.slow
@pytest.mark.covers("S3.2")
async def test_an_engine_that_lost_a_member_has_the_weights_before_it_is_asked(tmp_path: Path):
    built: list[Weighted] = []
    made: list[Served] = []

    def build(url: str) -> Weighted:
        built.append(Weighted(url))
        return built[-1]

    async def pool(observe: Callable[[Event], None]) -> ServerPool:
        made.append(Served(tmp_path, observe=observe))
        return made[-1].pool

    engine = SelfServed(build, pool)
    await engine.connect()
    try:
        await engine.update_weights("step-1", 1)
        kill((await made[0].said())[1]["pid"])
        await until(lambda: len(built) == 3 and built[2].version == 1 and is_in_service(engine))
        assert built[2].url == built[1].url == made[0].plan.heads[0]
        said = await engine.generate(Request(np.array([1, 2], np.int32), max_tokens=4, seed=0))
        assert engine.codec.decode(said.ids) == "1"
    finally:
        await engine.close()
    assert not marked(tmp_path)


@pytest.mark.slow
async def test_an_engine_is_ready_when_its_head_is(tmp_path: Path):
    served = Served(tmp_path, by_rank={0: launch(tmp_path, html=True)}, care=replace(QUICK, start_s=2))
    says = r"(?s)engine-0: not ready in 2 s .* engine-0-node-0: its log .* engine-0-node-1: its log "
    with pytest.raises(EngineError, match=says):
        await served.pool.start()
    assert not marked(tmp_path)


async def test_a_member_that_dies_at_its_start_fails_all_with_the_end_of_its_log(tmp_path: Path):
    served = Served(tmp_path, by_rank={0: launch(tmp_path, html=True), 1: launch(tmp_path, dies="gpt-7")})
    with pytest.raises(
        EngineError, match=r"(?s)engine-0: exit code 1 at its start; engine-0-node-1: .*no such model: gpt-7"
    ):
        await served.pool.start()
    assert not marked(tmp_path)


async def test_a_member_that_cannot_be_started_fails_all(tmp_path: Path):
    wrong = launch(tmp_path)
    wrong = replace(wrong, config=replace(wrong.config, python="/nowhere/python"))
    served = Served(tmp_path, by_rank={1: wrong})
    with pytest.raises(ConfigError, match="'/nowhere/python' cannot be started"):
        await served.pool.start()
    assert not marked(tmp_path)


async def test_a_port_that_somebody_took_on_a_node_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(member_process, "KILL_S", 0)
    served = Served(tmp_path)
    address = served.plan.members[1].address
    says = rf"port {address.port} of 127\.0\.0\.2 cannot be used"
    with socket.create_server((address.host, address.port)), pytest.raises(ConfigError, match=says):
        await served.pool.start()
    assert not marked(tmp_path)


class Severed(MemberProcess):
    """A member that cannot be reached from when its server was killed until it is started again."""

    is_gone = False

    async def start(self) -> int:
        self.is_gone = False
        return await super().start()

    async def wait(self) -> int:
        code = await super().wait()
        self.is_gone = code == -signal.SIGKILL
        return self._reached(code)

    async def last_words(self) -> str:
        return self._reached(await super().last_words())

    async def stop(self, grace_s: float) -> None:
        self._reached(None)
        await super().stop(grace_s)

    def _reached(self, answer: T) -> T:
        if self.is_gone:
            raise MemberLost("its node went down")
        return answer


@pytest.mark.slow
async def test_a_member_that_is_lost_is_placed_again(tmp_path: Path):
    served = Served(tmp_path, kind=Severed)
    await served.pool.start()
    try:
        kill((await served.said())[1]["pid"])
        await until(lambda: len(served.of(Up)) == 2)
        (down,) = served.of(Down)
        assert "engine-0-node-1 is lost: its node went down" in down.reason
    finally:
        await served.pool.stop()
    assert not marked(tmp_path)


async def test_a_stop_that_is_cancelled_kills_all_members_at_once(tmp_path: Path):
    deaf = launch(tmp_path, deaf=True)
    served = Served(tmp_path, by_rank={0: deaf, 1: deaf}, care=replace(QUICK, grace_s=60))
    await served.pool.start()
    stopping = asyncio.create_task(served.pool.stop())
    await asyncio.sleep(0)
    stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopping
    assert not marked(tmp_path)


@pytest.mark.parametrize(
    "config",
    [TWO_NODES, PoolConfig(num_cpu_engines=1, ray="10.0.0.7:6379"), PoolConfig(num_gpus=1, placement_group="g")],
)
async def test_a_pool_on_a_cluster_needs_ray(monkeypatch: pytest.MonkeyPatch, config: PoolConfig):
    monkeypatch.setitem(sys.modules, "ray", None)
    engine = pooled(EngineConfig(name="vllm", model=Launch(model="builtin").path), config)
    assert isinstance(engine, Remote)
    with pytest.raises(ConfigError, match=r"actors need Ray: pip install 'ramify\[ray\]'"):
        await engine.connect()
    await engine.close()
