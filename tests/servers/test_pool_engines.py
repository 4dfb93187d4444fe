"""A plan carried out: small real servers behind the command lines that a plan makes."""

import os
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.servers.engine_folders import engine_python
from tests.servers.programs import QUICK, ask, is_alive, kill, tell, until
from tests.service.weighted import Weighted

from ramify.core.engine import Request
from ramify.core.errors import ConfigError
from ramify.servers.launch import Launch
from ramify.servers.pool.config import PoolConfig
from ramify.servers.pool.engines import engine_of, free_here, servers_of, this_machine
from ramify.servers.pool.plan import PoolNode, PoolPlan, plan
from ramify.servers.server_config import ServerConfig
from ramify.servers.server_pool import Event, Up

CONTEXT = np.array([1, 2], np.int32)


def launch(tmp_path: Path, **options: str) -> Launch:
    interpreter = engine_python(tmp_path / "engine", ["vllm"])
    return Launch(
        model="m", config=ServerConfig(python=interpreter, device="gpu", logs=str(tmp_path / "logs"), **options)
    )


def planned(config: PoolConfig, *, seen: str = "4,5,6,7") -> PoolPlan:
    machine = this_machine(config, ours={"CUDA_VISIBLE_DEVICES": seen})
    return plan(config, [machine], free=free_here)


@pytest.mark.covers("S3.2")
async def test_a_plan_is_carried_out_as_it_is_written(tmp_path: Path):
    made = planned(PoolConfig(num_gpus=4, num_gpus_per_engine=2))
    servers = servers_of(made, launch(tmp_path), logs=tmp_path / "logs", ours=os.environ, care=QUICK)
    urls = await servers.start()
    pids = servers.pids
    try:
        assert urls == made.heads
        said: list[dict[str, Any]] = [await ask(url) for url in urls]
        assert [each["environment"]["CUDA_VISIBLE_DEVICES"] for each in said] == ["4,5", "6,7"]
        assert all("--tensor-parallel-size" in each["argv"] for each in said)
        blocks = [int(each["environment"]["VLLM_PORT"]) for each in said]
        assert abs(blocks[0] - blocks[1]) >= 16
        assert sorted(path.name for path in (tmp_path / "logs").iterdir()) == ["engine-0.1.log", "engine-1.1.log"]
    finally:
        await servers.stop()
    assert not any(is_alive(pid) for pid in pids if pid)


@pytest.mark.covers("S3.2")
async def test_an_engine_that_dies_is_started_again_with_its_own_cards_at_its_own_port(tmp_path: Path):
    events: list[Event] = []
    made = planned(PoolConfig(num_gpus=2))
    servers = servers_of(
        made, launch(tmp_path), logs=tmp_path / "logs", ours=os.environ, care=QUICK, observe=events.append
    )
    await servers.start()
    try:
        first = servers.pids[1]
        assert first is not None
        kill(first)
        await until(lambda: len([event for event in events if isinstance(event, Up) and event.index == 1]) == 2)
        again: dict[str, Any] = await ask(made.heads[1])
        assert again["pid"] == servers.pids[1] != first
        assert again["environment"]["CUDA_VISIBLE_DEVICES"] == "5"
    finally:
        await servers.stop()


@pytest.mark.covers("S3.2")
async def test_an_engine_that_was_started_again_has_the_weights_before_it_is_asked(tmp_path: Path):
    built: list[Weighted] = []

    def build(url: str) -> Weighted:
        built.append(Weighted(url))
        return built[-1]

    engine = engine_of(build, planned(PoolConfig(num_gpus=2)), launch(tmp_path), care=QUICK)
    await engine.connect()
    try:
        await engine.update_weights("step-1", 1)
        await tell(built[1].url, "/die")
        await until(lambda: len(built) == 4 and built[3].version == 1)
        assert built[3].url == built[1].url
        for seed in range(4):
            said = await engine.generate(Request(CONTEXT, max_tokens=4, seed=seed, affinity=seed))
            assert engine.codec.decode(said.ids) == "1"
    finally:
        await engine.close()


def test_this_machine_has_the_cards_that_we_see():
    config = PoolConfig(num_gpus=2, num_trainer_gpus=1)
    assert this_machine(config, ours={}).gpus == (1, 2)
    assert this_machine(config, ours={"CUDA_VISIBLE_DEVICES": "3, 5,7"}).gpus == (5, 7)
    assert this_machine(replace(config, colocate=True), ours={"CUDA_VISIBLE_DEVICES": "3,5,7"}).gpus == (3, 5)
    assert this_machine(PoolConfig(num_cpu_engines=1), ours={"CUDA_VISIBLE_DEVICES": ""}).gpus == ()
    with pytest.raises(ConfigError, match="'GPU-1a' is no number"):
        this_machine(config, ours={"CUDA_VISIBLE_DEVICES": "0,GPU-1a"})


def test_a_port_that_somebody_has_is_not_free():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        first = free_here("127.0.0.1", port - 1, 2)
        assert port not in (first, first + 1)
    with pytest.raises(ConfigError, match="no 2 free ports"):
        free_here("127.0.0.1", 65_535, 2)


def test_a_plan_of_several_nodes_is_not_carried_out_here(tmp_path: Path):
    made = plan(
        PoolConfig(num_gpus=2, num_gpus_per_engine=2, num_gpus_per_node=1),
        [PoolNode(host=host, gpus=(0,)) for host in ("127.0.0.1", "127.0.0.2")],
    )
    with pytest.raises(ConfigError, match="a plan of 2 members on 2 nodes is no plan of one machine"):
        servers_of(made, launch(tmp_path), logs=tmp_path, ours=os.environ)


def test_what_is_wrong_with_a_command_is_said_before_anything_starts(tmp_path: Path):
    wrong = launch(tmp_path)
    wrong = replace(wrong, config=replace(wrong.config, arguments=("--tensor-parallel-size", "8")))
    with pytest.raises(ConfigError, match="the pool's plan sets it"):
        servers_of(planned(PoolConfig(num_gpus=1)), wrong, logs=tmp_path, ours=os.environ)
