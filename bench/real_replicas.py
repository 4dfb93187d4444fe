"""Real vLLM servers on this machine's CPU: two of the built-in model, as `ramify serve` starts and stops them, and one
of the shipped scorer of steps."""

import asyncio
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ramify.edge.http import Http
from ramify.edge.stdio_guard import PR_SET_PDEATHSIG
from ramify.engines import value_model
from ramify.engines.builtin import FOLDER
from ramify.servers.launch import Launch, command
from ramify.servers.member import CARE
from ramify.servers.ports import Ports
from ramify.servers.probe import Probe
from ramify.servers.server_config import ServerConfig

PYTHON = "RAMIFY_ENGINES_PYTHON"
"""Environment variable with the interpreter that has vLLM; `make test-engines` sets it."""
MAX_MODEL_LEN = 2048
"""Beyond what the built-in model was trained for, so that a preamble fits; what it says there makes no sense."""
BLOCK = 128
"""Tokens a block of the prefix cache: vLLM's default on CPUs."""
LIBC = ctypes.CDLL(None)
AGAIN_S = 300.0
"""Time for a server that was killed to be up again: 70 to 100 s on a machine with nothing else to do."""


@dataclass(frozen=True)
class Served:
    """Servers that are up."""

    model: Path
    """The built-in model's folder, with a longer context."""
    urls: tuple[str, ...]
    pids: tuple[int, ...]
    """As they were started; one that was started again has another."""

    @property
    def base_url(self) -> str:
        return ",".join(self.urls)

    def flags(self, **others: Any) -> Mapping[str, Any]:
        """Settings of a run by these servers."""
        return {"engine.name": "vllm", "engine.model": str(self.model), "engine.base_url": self.base_url, **others}

    def wait_until_all_answer(self) -> None:
        """Wait until every server says what it serves and generates a token. Raises `TimeoutError` after `AGAIN_S`."""
        probe = replace(Launch(model=str(self.model)).probe, health="/v1/models")
        asyncio.run(wait_until_ready(self.urls, probe))


async def wait_until_ready(urls: Sequence[str], probe: Probe) -> None:
    """Ask the servers until each has generated. Raises `TimeoutError` after `AGAIN_S`."""
    async with asyncio.timeout(AGAIN_S):
        for url in urls:
            http = Http(url)
            try:
                await probe.until_ready(http, health_s=CARE.health_s, probe_s=CARE.probe_s, tell=lambda fault: None)
            finally:
                await http.close()


@contextmanager
def served(*arguments: str, count: int = 2, is_tied: bool = True) -> Iterator[Served]:
    """Start `count` servers, wait for them, and stop them behind the block. `is_tied`: whether the model's output layer
    is its embedding."""
    with TemporaryDirectory() as folder:
        model = longer(Path(folder) / "builtin")
        if not is_tied:
            untie(model)
        with subprocess.Popen(
            _command(model, count, arguments),
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=_goes_with_us,  # noqa: PLW1509
        ) as process:
            try:
                assert process.stdout is not None
                line = process.stdout.readline()
                assert line, f"`ramify serve` ended with {process.wait()}; what it said is above"
                told = json.loads(line)
                yield Served(model, tuple(told["urls"]), tuple(told["pids"]))
            finally:
                process.send_signal(signal.SIGINT)
                assert process.wait(timeout=60) == 0


@contextmanager
def scorer(path: str, *arguments: str) -> Iterator[str]:
    """Start a server of the shipped scorer of steps, wait until it answers at `path`, and stop it behind the block;
    yields its address."""
    config = ServerConfig(
        python=_python(), device="cpu", dtype="float32", arguments=("--runner", "pooling", *arguments)
    )
    launch = Launch(model=str(value_model.FOLDER), config=config)
    probe = Probe(path=path, body={"model": launch.name, "input": ["a"]}, key="data")
    with running(launch, probe) as url:
        yield url


@contextmanager
def running(launch: Launch, probe: Probe) -> Iterator[str]:
    """Start one server, wait until it answers `probe`, and stop it behind the block; yields its address. Raises
    `RuntimeError` if it ends before it answers."""
    ports = Ports()
    address = ports.address()
    started = command(launch, address, ours=os.environ)
    with subprocess.Popen(started.argv, env=started.environment, preexec_fn=_goes_with_us) as process:  # noqa: PLW1509
        try:
            asyncio.run(_ready(process, address.url, probe))
            yield address.url
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=60)
            ports.close()


async def _ready(process: "subprocess.Popen[bytes]", url: str, probe: Probe) -> None:
    waiting = asyncio.ensure_future(wait_until_ready([url], probe))
    while not waiting.done():
        await asyncio.wait([waiting], timeout=1)
        if process.poll() is not None:
            waiting.cancel()
            raise RuntimeError(f"the server ended with {process.returncode}; what it said is above")
    await waiting


def _goes_with_us() -> None:
    """Have the kernel stop `ramify serve` when we are killed: nobody else would, and it holds its servers. Runs between
    fork and exec, where a lock of another thread is never let go: one system call, and nothing is loaded for it."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def longer(folder: Path) -> Path:
    """A copy of the built-in model whose context is longer: vLLM computes garbage beyond what the model says."""
    shutil.copytree(FOLDER, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": MAX_MODEL_LEN}))
    return folder


def untie(folder: Path) -> None:
    """Give the model in `folder` an output layer of its own, with the same values."""
    file = folder / "model.safetensors"
    raw = file.read_bytes()
    start = 8 + int.from_bytes(raw[:8], "little")
    header, data = json.loads(raw[8:start]), raw[start:]
    embedding = header["model.embed_tokens.weight"]
    begin, end = embedding["data_offsets"]
    header["lm_head.weight"] = {**embedding, "data_offsets": [len(data), len(data) + end - begin]}
    text = json.dumps(header).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + data + data[begin:end])
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": False}))


def _command(model: Path, count: int, arguments: Sequence[str]) -> list[str]:
    return [
        *(sys.executable, "-m", "ramify.cli.main", "serve", str(model), "--json", "--replicas", str(count)),
        *("--python", _python(), "--device", "cpu", "--dtype", "float32"),
        *arguments,
        *("--", "--max-num-seqs", "64"),
    ]


def _python() -> str:
    """The interpreter that has vLLM."""
    python = os.environ.get(PYTHON)
    assert python, f"{PYTHON} is not set; run `make test-engines`"
    return python
