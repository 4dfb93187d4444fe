"""Members: the command and environment of each process of a planned engine. Nothing is run here.

Owns the flags that spread an engine over cards and nodes. `engine.server`'s arguments may not repeat them. Each process
sees only its own cards, so its first card is number 0 to it, whatever the node calls it. Flags as in vLLM 0.32 and
SGLang 0.5.23.
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
"""Environment of an actor that starts a member. It stops Ray from setting the visible cards: an actor asks for a share
of one card, but its engine has several (ray-project/ray: python/ray/_private/accelerators)."""
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
"""Flags that only a plan may set."""
SERVER: Final = ("-m", "vllm.entrypoints.openai.api_server")
WORKER: Final = ("-m", "vllm.entrypoints.cli.main", "serve")
"""vLLM's nodes other than the head serve no requests; only `serve` can start them, not the server's own module (vllm:
entrypoints/cli/serve.py)."""
RENDEZVOUS: Final = 1
"""Offset in the block of the port where the nodes of an engine meet. SGLang uses the six ports after it for its parts,
and the thirteenth after it for their handshake (sglang: srt/server_args.py). The first port of the block is its
--nccl-port."""
VLLM_RENDEZVOUS: Final = BLOCK - 2
"""Offset above the ports that vLLM takes from VLLM_PORT on."""
VLLM_PARTS: Final = BLOCK - 1
"""Offset of the port that controls vLLM's replicas inside one engine."""


def member_command(
    engine: EnginePlan, member: EngineMember, launch: Launch, *, ours: Mapping[str, str], at: Address | None = None
) -> Command:
    """The command that starts one process of `engine`. `ours` is the environment of the process that starts it, on the
    member's node.

    `at` = where it listens instead of the planned address. Raises `ConfigError` if the arguments set what the plan
    sets, or if this kind of engine cannot be spread this way.
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
        # Without this flag the ports of the parts lie 233 above the server's, where other servers may listen.
        *(("--dist-init-addr", f"{host}:{head.block + RENDEZVOUS}") if meets else ()),
    )


def _environment(engine: EnginePlan, member: EngineMember, address: Address) -> dict[str, str]:
    visible = {VISIBLE: ",".join(map(str, member.gpus))} if member.gpus else {}
    # The address that vLLM gives to its parts on other nodes. On a machine with several addresses it would choose the
    # one of the outgoing route.
    return visible | ({"VLLM_HOST_IP": address.host} if len(engine.members) > 1 else {})


def _nodes(engine: EnginePlan, member: EngineMember) -> tuple[str, ...]:
    num_nodes = len(engine.members)
    return ("--nnodes", str(num_nodes), "--node-rank", str(member.rank)) if num_nodes > 1 else ()


def _worker(server: Command) -> Command:
    """The command for a vLLM node that is not the head, made from the command of a head."""
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
