import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramify.core.errors import ConfigError, ContractError
from ramify.servers.launch import Launch
from ramify.servers.pool.config import PoolConfig
from ramify.servers.pool.members import ACTOR_ENVIRONMENT, member_command
from ramify.servers.pool.plan import (
    EnginePlan,
    PoolNode,
    PoolPlan,
    actor_resources,
    bundle_order,
    bundles,
    nodes_of,
    plan,
)
from ramify.servers.ports import BLOCK
from ramify.servers.server_config import ServerConfig

HOSTS = tuple(f"10.0.0.{number}" for number in range(1, 17))
VLLM = Launch(model="Qwen/Qwen3-0.6B", config=ServerConfig(python="/engine/bin/python", device="gpu"))
SGLANG = replace(VLLM, kind="sglang")


def nodes(count: int, num_gpus: int = 8) -> tuple[PoolNode, ...]:
    return tuple(PoolNode(host=host, gpus=tuple(range(num_gpus))) for host in HOSTS[:count])


def flags(engine: EnginePlan, rank: int, launch: Launch) -> tuple[str, ...]:
    return member_command(engine, engine.members[rank], launch, ours={}).argv


def value(argv: tuple[str, ...], flag: str) -> str | None:
    return argv[argv.index(flag) + 1] if flag in argv else None


def ports(config: PoolConfig, made: PoolPlan) -> dict[str, list[int]]:
    """Every port of every node, as often as it was given out."""
    given_out: dict[str, list[int]] = {}
    for member in made.members:
        own = [member.address.port, *range(member.address.block, member.address.block + BLOCK + config.data_parallel)]
        given_out.setdefault(member.address.host, []).extend(own)
    return given_out


@st.composite
def pools(draw: st.DrawFn) -> tuple[PoolConfig, tuple[PoolNode, ...]]:
    """A pool, and nodes that have room for it."""
    per_node = draw(st.sampled_from((1, 2, 4, 8)))
    per_engine = draw(st.sampled_from([size for size in (1, 2, 4, 8, 16) if size <= per_node or size % per_node == 0]))
    num_engines = draw(st.integers(1, max(1, 8 * per_node // per_engine)))
    config = PoolConfig(
        num_gpus=num_engines * per_engine,
        num_gpus_per_engine=per_engine,
        num_gpus_per_node=per_node,
        data_parallel=draw(st.sampled_from([size for size in (1, 2, 4) if per_engine % size == 0])),
    )
    return config, nodes(-(-config.num_gpus // per_node), per_node)


@pytest.mark.covers("S3.2")
@given(pools(), st.frozensets(st.integers(20_000, 20_400)))
def test_members_share_no_card_and_no_port(pool: tuple[PoolConfig, tuple[PoolNode, ...]], taken: frozenset[int]):
    config, machines = pool

    def free(host: str, first: int, count: int) -> int:
        while any(port in taken for port in range(first, first + count)):
            first += 1
        return first

    made = plan(config, machines, free=free)
    assert made == plan(config, machines, free=free), "the same inputs give the same plan"
    cards = [(member.address.host, gpu) for member in made.members for gpu in member.gpus]
    assert len(cards) == config.num_gpus == len(set(cards))
    assert set(cards) <= {(node.host, gpu) for node in machines for gpu in node.gpus}
    for given_out in ports(config, made).values():
        assert len(given_out) == len(set(given_out))
        assert not taken.intersection(given_out)
        assert all(config.first_port <= port <= config.last_port for port in given_out)
    assert len(made.heads) == len(set(made.heads)) == config.num_engines
    for index, engine in enumerate(made.engines):
        assert (engine.index, engine.num_gpus) == (index, config.num_gpus_per_engine)
        assert [member.rank for member in engine.members] == list(range(config.nodes_per_engine))
        assert len({member.address.host for member in engine.members}) == config.nodes_per_engine
        assert [member.is_head for member in engine.members] == [True] + [False] * (config.nodes_per_engine - 1)


@pytest.mark.covers("S3.2")
def test_only_node_0_of_an_engine_on_two_nodes_is_asked():
    config = PoolConfig(num_gpus=32, num_gpus_per_engine=16)
    made = plan(config, nodes(4))
    assert [url.partition("//")[2].partition(":")[0] for url in made.heads] == ["10.0.0.1", "10.0.0.3"]
    assert [member.address.host for member in made.members] == list(HOSTS[:4])
    assert all(member.gpus == tuple(range(8)) for member in made.members)


@pytest.mark.covers("S3.2")
def test_engines_lie_beside_each_other_on_one_node():
    made = plan(PoolConfig(num_gpus=8, num_gpus_per_engine=2), nodes(1))
    assert [engine.head.gpus for engine in made.engines] == [(0, 1), (2, 3), (4, 5), (6, 7)]
    assert [engine.head.address.port for engine in made.engines] == [20_000, 20_018, 20_036, 20_054]


@pytest.mark.covers("S3.10")
def test_a_card_is_a_bundle_and_an_engine_asks_for_a_share_of_one():
    config = PoolConfig(num_gpus=4, num_gpus_per_engine=2, num_trainer_gpus=4)
    assert bundles(config) == ({"CPU": 1, "GPU": 1},) * 8
    assert actor_resources(config) == {"num_cpus": 0.2, "num_gpus": 0.2}
    assert bundles(replace(config, colocate=True)) == ({"CPU": 1, "GPU": 1},) * 4
    assert bundles(replace(config, colocate=True, num_gpus=8)) == ({"CPU": 1, "GPU": 1},) * 8
    on_cpu = PoolConfig(num_cpu_engines=3)
    assert bundles(on_cpu) == ({"CPU": 1},) * 3
    assert actor_resources(on_cpu) == {"num_cpus": 1, "num_gpus": 0}


@pytest.mark.covers("S3.10")
def test_bundles_are_ordered_by_node_and_card():
    landed = [("10.0.0.10", 1), ("10.0.0.9", 3), ("10.0.0.10", 0), ("10.0.0.9", 12), ("node-10", 0), ("node-9", 0)]
    assert bundle_order(landed) == (1, 3, 2, 0, 5, 4)
    assert nodes_of(landed[:4]) == (
        PoolNode(host="10.0.0.9", gpus=(3, 12), bundles=(1, 3)),
        PoolNode(host="10.0.0.10", gpus=(0, 1), bundles=(2, 0)),
    )


@given(st.permutations([(host, gpu) for host in HOSTS[:3] for gpu in range(4)]))
def test_wherever_bundles_land_the_engines_are_the_same(landed: list[tuple[str, int]]):
    config = PoolConfig(num_gpus=8, num_gpus_per_engine=2, num_gpus_per_node=4, num_trainer_gpus=4)
    made = plan(config, nodes_of(landed, first=config.engine_offset))
    assert {member.address.host for member in made.members} == {"10.0.0.2", "10.0.0.3"}, "the trainer has the first"
    for member in made.members:
        assert member.bundle is not None
        assert landed[member.bundle] == (member.address.host, member.gpus[0])


@pytest.mark.covers("S3.10")
def test_colocated_engines_have_the_trainer_s_cards():
    landed = [(HOSTS[0], gpu) for gpu in range(4)]
    config = PoolConfig(num_gpus=4, num_gpus_per_node=4, num_trainer_gpus=4, colocate=True)
    made = plan(config, nodes_of(landed, first=config.engine_offset))
    assert [member.bundle for member in made.members] == [0, 1, 2, 3]


def test_engines_without_cards_go_to_the_nodes_by_turns():
    config = PoolConfig(num_cpu_engines=3)
    made = plan(config, [PoolNode(host="10.0.0.1"), PoolNode(host="10.0.0.2")])
    assert [member.address.host for member in made.members] == ["10.0.0.1", "10.0.0.2", "10.0.0.1"]
    assert all(member.gpus == () and member.bundle is None for member in made.members)
    bundled = plan(config, nodes_of([("10.0.0.2", 0), ("10.0.0.1", 0), ("10.0.0.1", 1)]))
    assert [(member.address.host, member.bundle) for member in bundled.members] == [
        ("10.0.0.1", 1),
        ("10.0.0.1", 2),
        ("10.0.0.2", 0),
    ]


@pytest.mark.covers("S3.2")
def test_sglang_on_two_nodes():
    config = PoolConfig(num_gpus=16, num_gpus_per_engine=16, data_parallel=4)
    engine = plan(config, nodes(2)).engines[0]
    for rank, host in enumerate(HOSTS[:2]):
        made = member_command(engine, engine.members[rank], SGLANG, ours={"CUDA_VISIBLE_DEVICES": "6"})
        assert made.argv == (
            "/engine/bin/python",
            *("-m", "sglang.launch_server"),
            *("--model-path", "Qwen/Qwen3-0.6B", "--served-model-name", "Qwen/Qwen3-0.6B"),
            *("--host", host, "--port", "20000", "--nccl-port", "20001"),
            *("--tp-size", "16", "--attn-dp-size", "4", "--nnodes", "2", "--node-rank", str(rank)),
            *("--dist-init-addr", "10.0.0.1:20002"),
        )
        assert made.environment["CUDA_VISIBLE_DEVICES"] == "0,1,2,3,4,5,6,7"


@pytest.mark.covers("S3.2")
def test_vllm_on_two_nodes():
    config = PoolConfig(num_gpus=4, num_gpus_per_engine=4, num_gpus_per_node=2)
    engine = plan(config, nodes(2, 2)).engines[0]
    head, worker = (member_command(engine, engine.members[rank], VLLM, ours={}) for rank in range(2))
    shared = (
        *("--enable-prompt-tokens-details", "--disable-uvicorn-access-log"),
        *("--tensor-parallel-size", "4", "--nnodes", "2", "--node-rank", "{}"),
        *("--master-addr", "10.0.0.1", "--master-port", "20015"),
    )
    assert head.argv[-len(shared) :] == tuple(part.format(0) for part in shared)
    assert head.argv[1:3] == ("-m", "vllm.entrypoints.openai.api_server")
    assert worker.argv[1:4] == ("-m", "vllm.entrypoints.cli.main", "serve")
    assert worker.argv[-len(shared) - 1 :] == (*(part.format(1) for part in shared), "--headless")
    assert [made.environment["VLLM_HOST_IP"] for made in (head, worker)] == list(HOSTS[:2])
    assert [made.environment["VLLM_PORT"] for made in (head, worker)] == ["20002", "20002"]


@pytest.mark.covers("S3.2")
def test_an_engine_on_one_card_gets_nothing_it_does_not_need():
    made = plan(PoolConfig(num_gpus=2), nodes(1)).engines
    assert [
        member_command(engine, engine.head, VLLM, ours={}).environment["CUDA_VISIBLE_DEVICES"] for engine in made
    ] == [
        "0",
        "1",
    ]
    argv = flags(made[1], 0, VLLM)
    assert value(argv, "--tensor-parallel-size") == "1"
    assert not {"--nnodes", "--data-parallel-size", "--master-addr", "--headless"}.intersection(argv)
    assert "--dist-init-addr" not in flags(made[1], 0, SGLANG)
    on_cpu = plan(PoolConfig(num_cpu_engines=1), [PoolNode(host="10.0.0.1")]).engines[0]
    assert "CUDA_VISIBLE_DEVICES" not in member_command(on_cpu, on_cpu.head, VLLM, ours={}).environment


def test_replicas_within_an_engine_share_its_cards():
    engine = plan(PoolConfig(num_gpus=8, num_gpus_per_engine=8, data_parallel=4), nodes(1)).engines[0]
    argv = flags(engine, 0, VLLM)
    assert (value(argv, "--tensor-parallel-size"), value(argv, "--data-parallel-size")) == ("2", "4")
    assert value(argv, "--data-parallel-rpc-port") == "20016"
    argv = flags(engine, 0, SGLANG)
    assert (value(argv, "--tp-size"), value(argv, "--attn-dp-size")) == ("8", "4")
    assert value(argv, "--dist-init-addr") == "10.0.0.1:20002"


def test_an_address_of_version_6_stands_in_brackets():
    config = PoolConfig(num_gpus=2, num_gpus_per_engine=2, num_gpus_per_node=1)
    engine = plan(config, [PoolNode(host=f"fd00::{number}", gpus=(0,)) for number in (1, 2)]).engines[0]
    assert value(flags(engine, 1, SGLANG), "--dist-init-addr") == "[fd00::1]:20002"


def test_ray_leaves_the_cards_of_an_engine_s_actor_alone():
    assert set(ACTOR_ENVIRONMENT.values()) == {"1"}
    assert "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES" in ACTOR_ENVIRONMENT


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({}, "num_gpus and num_cpu_engines are both 0"),
        ({"num_gpus": 4, "num_cpu_engines": 1}, "set one to 0"),
        ({"num_gpus": -1}, "pool.num_gpus = -1: at least 0"),
        ({"num_gpus": 8, "num_gpus_per_engine": 0}, "pool.num_gpus_per_engine = 0: at least 1"),
        ({"num_gpus": 8, "num_gpus_per_node": 0}, "pool.num_gpus_per_node = 0: at least 1"),
        ({"num_gpus": 2, "num_gpus_per_engine": 4}, "more than num_gpus = 2"),
        ({"num_gpus": 10, "num_gpus_per_engine": 4}, "no multiple of num_gpus_per_engine = 4: take 8 or 12"),
        ({"num_gpus": 12, "num_gpus_per_engine": 12}, "whole nodes of num_gpus_per_node = 8 only: take 8 or 16"),
        ({"num_gpus": 9, "num_gpus_per_engine": 3}, r"would lie across two nodes: take one of \[1, 2, 4, 8\]"),
        ({"num_gpus": 4, "num_gpus_per_engine": 4, "data_parallel": 3}, r"take one of \[1, 2, 4\]"),
        ({"num_cpu_engines": 2, "data_parallel": 2}, "raise num_cpu_engines"),
        ({"num_gpus": 1, "gpu_fraction": 0.0}, "a share of a card"),
        ({"num_gpus": 1, "gpu_fraction": 1.5}, "a share of a card"),
        ({"num_gpus": 1, "gpu_fraction": float("nan")}, "a share of a card"),
        ({"num_gpus": 1, "gpu_fraction": 1, "colocate": True}, "leaves a colocated trainer nothing"),
        ({"num_gpus": 1, "num_trainer_gpus": -1}, "at least 0"),
        ({"num_gpus": 1, "router": "own"}, "name the router as engine.base_url"),
        ({"num_gpus": 1, "router": "external"}, "a service places its requests itself"),
        ({"num_gpus": 1, "ray": " "}, "pool.ray = ' '"),
        ({"num_gpus": 1, "placement_group": ""}, "pool.placement_group = ''"),
        ({"num_gpus": 1, "first_port": 30_000, "last_port": 30_000}, "the last one is above the first"),
        ({"num_gpus": 1, "last_port": 70_000}, "ports are from 1 to 65535"),
    ],
)
def test_a_pool_that_cannot_be_is_refused(how: dict[str, Any], says: str):
    with pytest.raises(ConfigError, match=says):
        PoolConfig(**how)


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"host": ""}, "name the address"),
        ({"host": "0.0.0.0"}, "name the address"),
        ({"host": "a", "gpus": (0, 0)}, "each at least 0 and named once"),
        ({"host": "a", "gpus": (-1,)}, "each at least 0 and named once"),
        ({"host": "a", "gpus": (0, 1), "bundles": (0,)}, "1 bundles for 2 gpus"),
    ],
)
def test_a_node_that_cannot_be_is_refused(how: dict[str, Any], says: str):
    with pytest.raises(ConfigError, match=says):
        PoolNode(**how)


@pytest.mark.parametrize(
    ("machines", "says"),
    [
        ((), "at least one"),
        ((PoolNode(host="a", gpus=(0,)), PoolNode(host="a", gpus=(1,))), "each once"),
        (nodes(1), "need 4 times 4 gpus on a node; there is room for 2 on 10.0.0.1 (8)"),
        ((PoolNode(host="a", gpus=(0, 1, 2)), *nodes(1)), "there is room for 2 on a (3), 10.0.0.1 (8)"),
        (nodes(2, 16), "10.0.0.1 has 16 gpus for engines and num_gpus_per_node = 8"),
    ],
)
def test_nodes_without_room_are_refused(machines: tuple[PoolNode, ...], says: str):
    with pytest.raises(ConfigError, match=re.escape(says)):
        plan(PoolConfig(num_gpus=16, num_gpus_per_engine=4), machines)


def test_two_bundles_on_one_card_are_refused():
    with pytest.raises(ConfigError, match=r"two bundles lie on card 0 of 10\.0\.0\.1"):
        bundle_order([("10.0.0.1", 0), ("10.0.0.2", 0), ("10.0.0.1", 0)])


def test_ports_that_run_out_are_named():
    config = PoolConfig(num_gpus=8, first_port=20_000, last_port=20_030)
    with pytest.raises(ConfigError, match=r"no 17 free ports beside each other on 10\.0\.0\.1 from 20019"):
        plan(config, nodes(1))


def test_a_port_below_the_one_asked_for_is_a_broken_promise():
    with pytest.raises(ContractError, match="from 20000 on were asked for, and 80 was answered"):
        plan(PoolConfig(num_gpus=1), nodes(1), free=lambda host, first, count: 80)


@pytest.mark.parametrize(
    ("launch", "argument"),
    [
        (VLLM, "--tensor-parallel-size=2"),
        (VLLM, "--data_parallel_size"),
        (VLLM, "-tp"),
        (VLLM, "-dp=2"),
        (SGLANG, "--tp"),
        (SGLANG, "--dist-init-addr"),
        (SGLANG, "--base-gpu-id"),
    ],
)
def test_what_the_plan_sets_cannot_be_set_again(launch: Launch, argument: str):
    engine = plan(PoolConfig(num_gpus=1), nodes(1)).engines[0]
    mine = replace(launch, config=replace(launch.config, arguments=(argument,)))
    with pytest.raises(ConfigError, match="cannot be given, the pool's plan sets it"):
        member_command(engine, engine.head, mine, ours={})


def test_visible_cards_are_the_plan_s():
    engine = plan(PoolConfig(num_gpus=1), nodes(1)).engines[0]
    mine = replace(VLLM, config=replace(VLLM.config, environment={"CUDA_VISIBLE_DEVICES": "7"}))
    with pytest.raises(ConfigError, match="CUDA_VISIBLE_DEVICES cannot be given"):
        member_command(engine, engine.head, mine, ours={})


def test_replicas_within_an_engine_of_vllm_on_several_nodes_are_refused():
    engine = plan(PoolConfig(num_gpus=16, num_gpus_per_engine=16, data_parallel=2), nodes(2)).engines[0]
    with pytest.raises(ConfigError, match="set it to 1 and take engines of fewer gpus"):
        member_command(engine, engine.head, VLLM, ours={})
