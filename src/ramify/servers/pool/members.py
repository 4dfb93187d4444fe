"""Members: the command and environment of each process of a planned engine. Values in, values out: nothing is run.

Owns the flags by which an engine is spread over cards and nodes, which cannot be set again among `engine.server`'s
arguments. Each process sees its own cards and no others, so that the first is number 0 to it whatever the node calls
it. Flags as vLLM 0.32 and SGLang 0.5.23 have them.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final, assert_never

from ramify.core.errors import ConfigError
from ramify.servers.launch import Kind, Launch, command, flag_of
from ramify.servers.pool.plan import EngineMember, EnginePlan
from ramify.servers.ports import BLOCK, Address
from ramify.servers.process import Command

VISIBLE: Final = "CUDA_VISIBLE_DEVICES"
ACTOR_ENVIRONMENT: Final[Mapping[str, str]] = dict.fromkeys(
    (
        "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES",
        "RAY_EXPERIMENTAL_NOSET_MUSA_VISIBLE_DEVICES",
        "RAY_EXPERIMENTAL_NOSET_ROCR_VISIBLE_DEVICES",
        "RAY_EXPERIMENTAL_NOSET_HIP_VISIBLE_DEVICES",
        "RAY_EXPERIMENTAL_NOSET_ASCEND_RT_VISIBLE_DEVICES",
        "RAY_EXPERIMENTAL_NOSET_HABANA_VISIBLE_MODULES",
        "RAY_EXPERIMENTAL_NOSET_NEURON_RT_VISIBLE_CORES",
        "RAY_EXPERIMENTAL_NOSET_TPU_VISIBLE_CHIPS",
        "RAY_EXPERIMENTAL_NOSET_ONEAPI_DEVICE_SELECTOR",
        "RAY_EXPERIMENTAL_NOSET_ZE_AFFINITY_MASK",
    ),
    "1",
)
"""Of an actor that starts a member: Ray is to leave the visible cards alone, since an actor asks for a share of one
card and its engine has several (ray-project/ray: python/ray/_private/accelerators)."""
PLANNED: Final[Mapping[Kind, frozenset[str]]] = {
    "vllm": frozenset(
        "--tensor-parallel-size -tp --data-parallel-size -dp --data-parallel-rpc-port --nnodes -n --node-rank -r "
        "--master-addr --master-port --headless".split()
    ),
    "sglang": frozenset(
        "--tp-size --tp --tensor-parallel-size --dp-size --dp --data-parallel-size --attn-dp-size "
        "--attention-data-parallel-size --enable-dp-attention --nnodes --node-rank --dist-init-addr "
        "--nccl-init-addr --base-gpu-id --gpu-id-step".split()
    ),
}
"""Flags that a plan sets."""
SERVER: Final = ("-m", "vllm.entrypoints.openai.api_server")
WORKER: Final = ("-m", "vllm.entrypoints.cli.main", "serve")
"""vLLM's other nodes answer nobody; the server's own module knows no such thing (vllm: entrypoints/cli/serve.py)."""
RENDEZVOUS: Final = 1
"""Port of the block where the nodes of an engine meet. SGLang has six behind it for its parts, and the thirteenth for
their handshake (sglang: srt/server_args.py); the first of the block is its --nccl-port."""
VLLM_RENDEZVOUS: Final = BLOCK - 2
"""Behind those that vLLM takes from VLLM_PORT on."""
VLLM_PARTS: Final = BLOCK - 1
"""Port by which vLLM's replicas in one engine are told what to do."""


def member_command(
    engine: EnginePlan, member: EngineMember, launch: Launch, *, ours: Mapping[str, str], at: Address | None = None
) -> Command:
    """How one process of `engine` is started; `ours` is the environment of whoever starts it, on the member's node.

    `at` = where it is to listen in place of the address that was planned. Raises `ConfigError` where the arguments set
    what the plan sets, or the kind of engine cannot be spread so.
    """
    _refuse_planned(launch)
    _refuse_spread(engine, launch.kind)
    address = at or member.address
    head = address if member.is_head else engine.head.address
    match launch.kind:
        case "vllm":
            flags = _vllm(engine, member, head)
        case "sglang":
            flags = _sglang(engine, member, head)
        case _:
            assert_never(launch.kind)
    config = replace(
        launch.config,
        arguments=(*flags, *launch.config.arguments),
        environment={**launch.config.environment, **_environment(engine, member, address)},
    )
    started = command(replace(launch, config=config), address, ours=ours)
    return started if member.is_head or launch.kind != "vllm" else _worker(started)


def _vllm(engine: EnginePlan, member: EngineMember, head: Address) -> tuple[str, ...]:
    parts = engine.data_parallel
    return (
        *("--tensor-parallel-size", str(max(1, engine.num_gpus // parts))),
        *(("--data-parallel-size", str(parts)) if parts > 1 else ()),
        *(("--data-parallel-rpc-port", str(head.block + VLLM_PARTS)) if parts > 1 else ()),
        *_nodes(engine, member),
        *(("--master-addr", head.host) if len(engine.members) > 1 else ()),
        *(("--master-port", str(head.block + VLLM_RENDEZVOUS)) if len(engine.members) > 1 else ()),
    )


def _sglang(engine: EnginePlan, member: EngineMember, head: Address) -> tuple[str, ...]:
    parts = engine.data_parallel
    meets = parts > 1 or len(engine.members) > 1
    host = f"[{head.host}]" if ":" in head.host else head.host
    return (
        *("--tp-size", str(max(1, engine.num_gpus))),
        *(("--attn-dp-size", str(parts)) if parts > 1 else ()),
        *_nodes(engine, member),
        # Without it the ports of the parts lie 233 behind the server's, where others may be.
        *(("--dist-init-addr", f"{host}:{head.block + RENDEZVOUS}") if meets else ()),
    )


def _environment(engine: EnginePlan, member: EngineMember, address: Address) -> dict[str, str]:
    visible = {VISIBLE: ",".join(map(str, member.gpus))} if member.gpus else {}
    # The address that vLLM's parts on other nodes are told; of several it would take that of the way out.
    return visible | ({"VLLM_HOST_IP": address.host} if len(engine.members) > 1 else {})


def _nodes(engine: EnginePlan, member: EngineMember) -> tuple[str, ...]:
    num_nodes = len(engine.members)
    return ("--nnodes", str(num_nodes), "--node-rank", str(member.rank)) if num_nodes > 1 else ()


def _worker(server: Command) -> Command:
    """vLLM on a node that is not the head's, from the command of one that is."""
    python, *rest = server.argv
    assert tuple(rest[: len(SERVER)]) == SERVER, "the launch of vLLM has changed"
    return Command((python, *WORKER, *rest[len(SERVER) :], "--headless"), server.environment)


def _refuse_planned(launch: Launch) -> None:
    given = (flag_of(argument) or argument.partition("=")[0] for argument in launch.config.arguments)
    twice = sorted(PLANNED[launch.kind].intersection(given))
    if twice:
        raise ConfigError(f"engine.server.arguments: {', '.join(twice)} cannot be given, the pool's plan sets it")
    if VISIBLE in launch.config.environment:
        raise ConfigError(f"engine.server.environment: {VISIBLE} cannot be given, the pool's plan sets it")


def _refuse_spread(engine: EnginePlan, kind: Kind) -> None:
    if kind == "vllm" and engine.data_parallel > 1 and len(engine.members) > 1:
        raise ConfigError(
            f"pool.data_parallel = {engine.data_parallel}: an engine of vLLM on {len(engine.members)} nodes has none; "
            "set it to 1 and take engines of fewer gpus"
        )
