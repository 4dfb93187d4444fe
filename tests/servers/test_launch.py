import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from ramify.core.errors import ConfigError
from ramify.servers.launch import Kind, Launch, RouterLaunch, command, router_command
from ramify.servers.ports import Address
from ramify.servers.server_config import ServerConfig

ADDRESS = Address("127.0.0.1", 8000, 12000)
OURS = {"PATH": "/bin", "OPENAI_API_KEY": "sk-secret"}
GPU = Launch(model="Qwen/Qwen3-0.6B", config=ServerConfig(python="/engine/bin/python", device="gpu"))


def configured(**how: Any) -> Launch:
    return replace(GPU, config=replace(GPU.config, **how))


def test_vllm_on_a_card():
    made = command(GPU, ADDRESS, ours=OURS)
    assert made.argv == (
        "/engine/bin/python",
        *("-m", "vllm.entrypoints.openai.api_server"),
        *("--model", "Qwen/Qwen3-0.6B", "--served-model-name", "Qwen/Qwen3-0.6B"),
        *("--host", "127.0.0.1", "--port", "8000"),
        *("--enable-prompt-tokens-details", "--disable-uvicorn-access-log"),
    )
    assert made.environment == {
        "PATH": "/engine/bin:/bin",
        "PYTHONSAFEPATH": "1",
        "PYTHONUNBUFFERED": "1",
        "PYTHONNOUSERSITE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_PORT": "12001",
    }


def test_vllm_without_a_card():
    arguments = ("--max-num-seqs", "64")
    config = ServerConfig(device="cpu", dtype="bfloat16", max_model_len=512, arguments=arguments)
    launch = Launch(model="builtin", config=config)
    made = command(launch, ADDRESS, ours={**OURS, "OMP_NUM_THREADS": "2"})
    folder = Path(made.argv[4])
    assert (folder / "model.safetensors").is_file()
    assert made.argv == (
        sys.executable,
        *("-m", "vllm.entrypoints.openai.api_server"),
        *("--model", str(folder), "--served-model-name", "builtin"),
        *("--host", "127.0.0.1", "--port", "8000"),
        *("--enable-prompt-tokens-details", "--disable-uvicorn-access-log"),
        *("--enforce-eager", "--no-enable-chunked-prefill"),
        *("--dtype", "bfloat16", "--max-model-len", "512", "--max-num-seqs", "64"),
    )
    assert made.environment["VLLM_CPU_KVCACHE_SPACE"] == "1"
    assert made.environment["VLLM_CPU_OMP_THREADS_BIND"] == "nobind"
    assert made.environment["OMP_NUM_THREADS"] == "2", "ours says otherwise"


def test_sglang():
    config = ServerConfig(python="/p", device="cpu", dtype="half", max_model_len=9)
    launch = Launch(model="m", kind="sglang", served_name="n", config=config)
    made = command(launch, ADDRESS, ours=OURS)
    assert made.argv == (
        "/p",
        *("-m", "sglang.launch_server"),
        *("--model-path", "m", "--served-model-name", "n"),
        *("--host", "127.0.0.1", "--port", "8000", "--nccl-port", "12000"),
        *("--device", "cpu", "--dtype", "half", "--context-length", "9"),
    )
    assert "VLLM_PORT" not in made.environment


@pytest.mark.covers("S3.3")
def test_a_router():
    made = router_command(
        RouterLaunch(python="/p", policy="manual"), ADDRESS, workers=["http://a", "http://b"], ours=OURS
    )
    assert made.argv == (
        "/p",
        *("-m", "sglang_router.launch_router"),
        *("--host", "127.0.0.1", "--port", "8000"),
        *("--prometheus-host", "127.0.0.1", "--prometheus-port", "12000"),
        *("--policy", "manual", "--disable-retries", "--request-timeout-secs", "1800"),
        *("--worker-startup-check-interval", "1", "--log-level", "warn"),
        *("--worker-urls", "http://a", "http://b"),
    )
    with pytest.raises(ConfigError, match="a router needs workers"):
        router_command(RouterLaunch(), ADDRESS, workers=[], ours=OURS)


def test_a_folder_is_told_by_its_whole_path_and_called_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "my-model").mkdir()
    monkeypatch.chdir(tmp_path)
    launch = replace(GPU, model="my-model")
    assert launch.path == str(tmp_path / "my-model")
    assert launch.name == "my-model"
    assert replace(launch, served_name="other").name == "other"


def test_keys_stay_here_and_named_variables_win():
    made = command(configured(environment={"VLLM_PORT": "1", "A": "b"}), ADDRESS, ours=OURS)
    assert "OPENAI_API_KEY" not in made.environment
    assert made.environment["VLLM_PORT"] == "1" and made.environment["A"] == "b"
    handed_on = command(configured(hand_on=("OPENAI_API_KEY",)), ADDRESS, ours=OURS)
    assert handed_on.environment["OPENAI_API_KEY"] == "sk-secret"


def test_developers_routes_are_open_to_this_machine_only():
    reachable = Address("192.0.2.7", 8000, 12000)
    assert "VLLM_SERVER_DEV_MODE" not in command(GPU, reachable, ours=OURS).environment


@pytest.mark.parametrize("argument", ["--port", "--port=1", "--served_model_name=x", "--model", "--host"])
def test_what_ramify_sets_cannot_be_set_again(argument: str):
    with pytest.raises(ConfigError, match=r"cannot be given, ramify sets it"):
        configured(arguments=("--max-num-seqs", "64", argument))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"max_model_len": 0}, "at least 1 token"),
        ({"start_s": 0}, "must be above 0"),
        ({"environment": {"": "x"}}, "is no name of a variable"),
        ({"hand_on": ("A B",)}, "is no name of a variable"),
        (
            {"environment": {"HF_TOKEN": "hf"}},
            "HF_TOKEN is a key by its name; set it in your own",
        ),
    ],
)
def test_impossible_servers_are_refused(wrong: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        ServerConfig(**wrong)


def test_a_model_and_time_for_requests_are_needed():
    with pytest.raises(ConfigError, match="a name, a folder or 'builtin' is needed"):
        Launch(model=" ")
    with pytest.raises(ConfigError, match="at least 1 second"):
        RouterLaunch(request_timeout_s=0)


def test_servers_are_started_for_engines_that_have_some():
    assert Launch.for_engine("sglang", "m", ServerConfig()).kind == "sglang"
    for name, model in [("builtin", "m"), ("vllm", None)]:
        with pytest.raises(ConfigError, match="they are started for 'vllm' and 'sglang', and need a model"):
            Launch.for_engine(name, model, ServerConfig())


def test_each_kind_is_asked_for_a_token_in_its_own_way():
    assert GPU.probe.path == "/v1/completions" and GPU.probe.body == {"model": GPU.name, "prompt": "a", "max_tokens": 1}
    assert replace(GPU, kind="sglang").probe.path == "/generate"


@pytest.mark.parametrize(
    ("config", "dtype"),
    [
        (ServerConfig(device="cpu"), ["float32"]),
        (ServerConfig(device="cpu", dtype="half"), ["half"]),
        (ServerConfig(device="cpu", arguments=("--dtype", "auto")), ["auto"]),
        (ServerConfig(device="cpu", arguments=("--dtype=auto",)), []),
        (ServerConfig(device="gpu"), []),
    ],
)
@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_a_cpu_computes_in_float32_unless_told_otherwise(kind: Kind, config: ServerConfig, dtype: list[str]):
    argv = command(Launch(model="m", kind=kind, config=config), ADDRESS, ours=OURS).argv
    assert [value for flag, value in pairwise(argv) if flag == "--dtype"] == dtype
