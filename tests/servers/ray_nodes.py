"""A script: an engine on the two nodes of a Ray cluster of its own, at two addresses of this machine.

`python -m tests.servers.ray_nodes FOLDER` has its members die in every way, and checks what comes of it; with `--stay`
it writes FOLDER/up when the engine is up, and waits to be killed.
"""

import asyncio
import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
from ray.cluster_utils import Cluster as Nodes
from tests.servers.engine_folders import engine_python
from tests.servers.programs import QUICK, answered, is_alive, kill, marked, until, wait_until
from tests.service.weighted import Weighted, is_in_service

from ramify.core.engine import Request
from ramify.core.errors import ConfigError
from ramify.servers.launch import Launch
from ramify.servers.pool.cluster import Cluster, clustered
from ramify.servers.pool.config import PoolConfig
from ramify.servers.self_served import SelfServed
from ramify.servers.server_config import ServerConfig

HOSTS = ("127.0.0.2", "127.0.0.3")
TWO_NODES = PoolConfig(num_gpus=2, num_gpus_per_engine=2, num_gpus_per_node=1)
NODE: dict[str, Any] = {
    "num_cpus": 2,
    "num_gpus": 1,
    "object_store_memory": 80 * 2**20,
    "include_dashboard": False,
}


def engine_in(folder: Path, built: list[Weighted]) -> SelfServed:
    """An engine that is not connected yet, each of whose members is five processes in as many sessions."""
    python = engine_python(folder / "engine", ["vllm", "vllm of other nodes"])
    environment = {"TEST_OPTIONS": json.dumps({"crowd": str(folder / "pids")}), "TEST_MARK": str(folder)}
    config = ServerConfig(python=python, device="gpu", environment=environment, logs=str(folder / "logs"))

    def build(url: str) -> Weighted:
        built.append(Weighted(url))
        return built[-1]

    return clustered(build, TWO_NODES, Launch(model="m", config=config), care=replace(QUICK, max_restarts=5))


async def dies_in_every_way(folder: Path) -> None:
    built: list[Weighted] = []
    engine = engine_in(folder, built)
    await engine.connect()
    try:
        await die_one_after_another(engine, built)
    finally:
        await engine.close()
    assert not marked(folder)
    await asyncio.to_thread(wait_until, lambda: ray.available_resources().get("GPU") == 2)


async def die_one_after_another(engine: SelfServed, built: list[Weighted]) -> None:
    await engine.update_weights("step-1", 1)
    url = built[1].url
    assert url.startswith(f"http://{HOSTS[0]}:")
    other = url.replace(*HOSTS)
    await is_as_planned(url, other)

    for victim in (await pid(other), actor_of(await pid(other)), actor_of(await pid(url))):
        before, num_built = {await pid(url), await pid(other)}, len(built)
        kill(victim)
        await until(lambda num=num_built: len(built) > num and built[-1].version == 1 and is_in_service(engine))
        assert built[-1].url == url
        assert not before & {await pid(url), await pid(other)} and not any(map(is_alive, before))
        said = await engine.generate(Request(np.array([1, 2], np.int32), max_tokens=4, seed=0))
        assert engine.codec.decode(said.ids) == "1"
    await is_as_planned(url, other)


async def is_as_planned(url: str, other: str) -> None:
    for rank, said in enumerate((await answered(url), await answered(other))):
        flags, environment = said["argv"], said["environment"]
        assert flags[flags.index("--node-rank") + 1] == str(rank)
        assert flags[flags.index("--master-addr") + 1] == HOSTS[0]
        assert environment["VLLM_HOST_IP"] == HOSTS[rank]
        assert environment["CUDA_VISIBLE_DEVICES"] == "0"


async def refuses_what_does_not_fit() -> None:
    for config, says in {
        PoolConfig(num_gpus=4, num_gpus_per_engine=2, num_gpus_per_node=1): "need 4 GPU and the cluster has 2",
        PoolConfig(num_gpus=2, num_gpus_per_engine=2, ray="auto"): "need 1 times 2 gpus on a node; there is room for 0",
        PoolConfig(num_gpus=2, colocate=True, num_gpus_per_node=1): "name it as pool.placement_group",
        PoolConfig(num_gpus=2, placement_group="theirs"): "there is none of that name",
    }.items():
        with pytest.raises(ConfigError, match=says):
            (await asyncio.to_thread(Cluster.opened, config)).close()


async def shares_the_group_of_a_trainer() -> None:
    group = ray.util.placement_group([{"CPU": 1, "GPU": 1}] * 2, name="theirs")
    ray.get(group.ready())
    config = PoolConfig(num_gpus=1, num_trainer_gpus=1, placement_group="theirs")
    cluster = await asyncio.to_thread(Cluster.opened, config)
    assert [member.address.host for member in cluster.plan.members] == [HOSTS[1]], "the first card is the trainer's"
    cluster.close()
    assert ray.util.get_placement_group("theirs").bundle_count == 2
    ray.util.remove_placement_group(group)


async def places_engines_without_cards() -> None:
    cluster = await asyncio.to_thread(Cluster.opened, PoolConfig(num_cpu_engines=3, ray="auto"))
    assert {member.address.host for member in cluster.plan.members} == set(HOSTS), "a node has two CPUs"
    assert len(set(cluster.plan.heads)) == 3
    cluster.close()


async def pid(url: str) -> int:
    return (await answered(url))["pid"]


def actor_of(server: int) -> int:
    """The actor above the guard above a server."""
    return parent(parent(server))


def parent(process: int) -> int:
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])


async def stays(folder: Path) -> None:
    await engine_in(folder, []).connect()
    (folder / "up").touch()
    await asyncio.Event().wait()


async def main(folder: Path, *, is_to_stay: bool) -> None:
    nodes = Nodes()
    for host in HOSTS:
        nodes.add_node(node_ip_address=host, **NODE)
    ray.init(nodes.address, _node_ip_address=HOSTS[0], log_to_driver=False, logging_level="CRITICAL")
    try:
        if is_to_stay:
            await stays(folder)
        await dies_in_every_way(folder)
        await refuses_what_does_not_fit()
        await shares_the_group_of_a_trainer()
        await places_engines_without_cards()
    finally:
        ray.shutdown()
        nodes.shutdown()


if __name__ == "__main__":
    os.environ.update(RAY_USAGE_STATS_ENABLED="0", RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO="0")
    asyncio.run(main(Path(sys.argv[1]), is_to_stay="--stay" in sys.argv))
