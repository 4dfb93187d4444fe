"""Launch: the command and environment that start a server of each kind. Nothing is run here.

`arguments` go to the server unchanged. They may not repeat the flags set here (address, model, process group ports).
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, assert_never, get_args

from ramify.core.errors import ConfigError
from ramify.engines.shipped import MODELS
from ramify.servers.environment import beside, inherited
from ramify.servers.ports import Address
from ramify.servers.probe import Probe
from ramify.servers.process import Command
from ramify.servers.server_config import ServerConfig

Kind = Literal["vllm", "sglang"]
Policy = Literal["cache_aware", "random", "round_robin", "power_of_two", "manual"]

OURS: Final[Mapping[Kind, frozenset[str]]] = {
    "vllm": frozenset({"--model", "--served-model-name", "--host", "--port"}),
    "sglang": frozenset({"--model-path", "--model", "--served-model-name", "--host", "--port", "--nccl-port"}),
}
"""Flags that only this module may set."""
NO_TELEMETRY: Final = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
ON_CPU: Final = {"OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_CPU_KVCACHE_SPACE": "1"}
"""Defaults; our own environment overrides them. One thread: on two cores, servers with two threads each block each
other at OpenMP barriers. Bound to no core: vLLM 0.32 binds the threads of every server to the same one, so two servers
took 1.6 to 2.5 times as long. 1 GiB of keys and values holds 87,000 tokens of a 0.5 B model (24 layers of 2 heads of
64)."""
SERVER: Final = ServerConfig()
CPU_FLAGS: Final = ("--enforce-eager", "--no-enable-chunked-prefill")
"""No compilation, and each context is computed in one piece: vLLM 0.32 on a CPU crashes on a request with a seed whose
context is computed in several chunks (its generator has no offset to reset,
`gpu_model_runner.py:_bookkeeping_sync`)."""
CPU_DTYPE: Final = "float32"
"""Many CPUs lack the instructions for bfloat16, and a server dies there of SIGILL. Models say bfloat16."""
LOOPBACK: Final = ("127.", "::1", "localhost")


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """How the servers of one model are started, wherever they listen."""

    model: str
    """A name, a folder, or a shipped model's name, such as `builtin`."""
    kind: Kind = "vllm"
    served_name: str = ""
    """Model name in requests; '' = the model's name, or its folder's name."""
    config: ServerConfig = SERVER

    def __post_init__(self) -> None:
        if not self.model.strip():
            raise ConfigError(f"model = {self.model!r}: a name, a folder or 'builtin' is needed")
        twice = sorted({flag for flag in map(flag_of, self.config.arguments) if flag in OURS[self.kind]})
        if twice:
            raise ConfigError(f"arguments: {', '.join(twice)} cannot be given, ramify sets it")

    @classmethod
    def for_engine(cls, name: str, model: str | None, config: ServerConfig) -> "Launch":
        """Servers for the engine `name`. Raises `ConfigError` if that engine has no servers or `model` is None."""
        kinds: dict[str, Kind] = {kind: kind for kind in get_args(Kind)}
        if name not in kinds or model is None:
            raise ConfigError(
                f"servers for the engine {name!r} with model = {model!r}: they are started for "
                f"{' and '.join(map(repr, kinds))}, and need a model"
            )
        return cls(model=model, kind=kinds[name], config=config)

    @property
    def name(self) -> str:
        """Model name in requests."""
        is_folder = self.model not in MODELS and Path(self.model).is_dir()
        return self.served_name or (Path(self.model).resolve().name if is_folder else self.model)

    @property
    def path(self) -> str:
        """Model argument of the server. A folder is an absolute path, since the server may run in another folder."""
        if self.model in MODELS:
            return str(MODELS[self.model])
        return str(Path(self.model).resolve()) if Path(self.model).is_dir() else self.model

    @property
    def interpreter(self) -> str:
        return self.config.python or sys.executable

    @property
    def probe(self) -> Probe:
        """The requests that check whether a server of this kind is ready and can still generate."""
        match self.kind:
            case "vllm":
                body = {"model": self.name, "prompt": "a", "max_tokens": 1}
                return Probe(path="/v1/completions", body=body, key="choices")
            case "sglang":
                body = {"text": "a", "sampling_params": {"max_new_tokens": 1}}
                return Probe(path="/generate", body=body, key="meta_info")
            case _:
                assert_never(self.kind)


def command(launch: Launch, address: Address, *, ours: Mapping[str, str]) -> Command:
    """The command that starts one server of `launch` at `address`; `ours` is our own environment."""
    match launch.kind:
        case "vllm":
            argv, own = _vllm(launch, address), _vllm_environment(launch, address, ours)
        case "sglang":
            argv, own = _sglang(launch, address), dict(NO_TELEMETRY)
        case _:
            assert_never(launch.kind)
    environment = beside(launch.interpreter, inherited(ours, also=launch.config.hand_on))
    return Command((launch.interpreter, *argv), {**environment, **own, **launch.config.environment})


def _vllm(launch: Launch, address: Address) -> tuple[str, ...]:
    return (
        *("-m", "vllm.entrypoints.openai.api_server"),
        *("--model", launch.path, "--served-model-name", launch.name),
        *("--host", address.host, "--port", str(address.port)),
        *("--enable-prompt-tokens-details", "--disable-uvicorn-access-log"),
        *(CPU_FLAGS if launch.config.device == "cpu" else ()),
        *_option("--dtype", _dtype(launch)),
        *_option("--max-model-len", launch.config.max_model_len),
        *launch.config.arguments,
    )


def _vllm_environment(launch: Launch, address: Address, ours: Mapping[str, str]) -> dict[str, str]:
    on_cpu = ON_CPU if launch.config.device == "cpu" else {}
    own = {name: value for name, value in on_cpu.items() if name not in ours}
    if address.host.startswith(LOOPBACK):
        # Pausing and new weights are routes of vLLM's development mode. That mode lets anybody who can connect run any
        # code.
        own["VLLM_SERVER_DEV_MODE"] = "1"
    # vLLM looks for a free port from here upwards; we keep the first port of the block.
    return {**NO_TELEMETRY, **own, "VLLM_PORT": str(address.block + 1)}


def _sglang(launch: Launch, address: Address) -> tuple[str, ...]:
    return (
        *("-m", "sglang.launch_server"),
        *("--model-path", launch.path, "--served-model-name", launch.name),
        *("--host", address.host, "--port", str(address.port), "--nccl-port", str(address.block)),
        *(("--device", "cpu") if launch.config.device == "cpu" else ()),
        *_option("--dtype", _dtype(launch)),
        *_option("--context-length", launch.config.max_model_len),
        *launch.config.arguments,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterLaunch:
    """How a router over workers is started. Its own retries are off: only the engine's edge retries a generation."""

    python: str = ""
    """Interpreter of the environment that has sglang-router; '' = ours."""
    policy: Policy = "cache_aware"
    """How a worker is chosen (sgl-project/sglang: the router's own default)."""
    request_timeout_s: int = 1800
    """Timeout of a request; the router's own default."""
    arguments: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.request_timeout_s < 1:
            raise ConfigError(f"request_timeout_s = {self.request_timeout_s!r}: at least 1 second")


def router_command(
    launch: RouterLaunch, address: Address, *, workers: Sequence[str], ours: Mapping[str, str]
) -> Command:
    """The command that starts a router over `workers` at `address`."""
    if not workers:
        raise ConfigError("a router needs workers, got none")
    python = launch.python or sys.executable
    argv = (
        *(python, "-m", "sglang_router.launch_router"),
        *("--host", address.host, "--port", str(address.port)),
        *("--prometheus-host", address.host, "--prometheus-port", str(address.block)),
        *("--policy", launch.policy, "--disable-retries"),
        *("--request-timeout-secs", str(launch.request_timeout_s)),
        # The workers are already up. With the router's default of 30 s, one check that is a moment too early costs 30
        # s.
        *("--worker-startup-check-interval", "1", "--log-level", "warn"),
        *launch.arguments,
        *("--worker-urls", *workers),
    )
    return Command(argv, beside(python, inherited(ours)))


def _dtype(launch: Launch) -> str | None:
    """The number type to ask for: on a CPU float32 unless somebody names another; None = the model's."""
    is_named = launch.config.dtype is not None or "--dtype" in map(flag_of, launch.config.arguments)
    return launch.config.dtype if is_named or launch.config.device != "cpu" else CPU_DTYPE


def _option(flag: str, value: object) -> tuple[str, ...]:
    return () if value is None else (flag, str(value))


def flag_of(argument: str) -> str:
    """The flag in an argument, with dashes and without its value: `--served_model_name=x` is `--served-model-name`."""
    return argument.partition("=")[0].replace("_", "-") if argument.startswith("--") else ""
