"""Two vLLM servers of the built-in model on this machine's CPU, as `ramify serve` starts and stops them."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ramify.engines.builtin import FOLDER

PYTHON = "RAMIFY_ENGINES_PYTHON"
"""Environment variable with the interpreter that has vLLM; `make test-engines` sets it."""
MAX_MODEL_LEN = 2048
"""Beyond what the built-in model was trained for, so that a preamble fits; what it says there makes no sense."""
BLOCK = 128
"""Tokens a block of the prefix cache: vLLM's default on CPUs."""


@dataclass(frozen=True)
class Served:
    """Servers that are up."""

    model: Path
    """The built-in model's folder, with a longer context."""
    urls: tuple[str, ...]
    pids: tuple[int, ...]

    @property
    def base_url(self) -> str:
        return ",".join(self.urls)

    def flags(self, **others: Any) -> Mapping[str, Any]:
        """Settings of a run by these servers."""
        return {"engine.name": "vllm", "engine.model": str(self.model), "engine.base_url": self.base_url, **others}


@contextmanager
def served(*arguments: str, count: int = 2) -> Iterator[Served]:
    """Start `count` servers, wait for them, and stop them behind the block."""
    with TemporaryDirectory() as folder:
        model = longer(Path(folder) / "builtin")
        with subprocess.Popen(_command(model, count, arguments), stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                line = process.stdout.readline()
                assert line, f"`ramify serve` ended with {process.wait()}; what it said is above"
                told = json.loads(line)
                yield Served(model, tuple(told["urls"]), tuple(told["pids"]))
            finally:
                process.send_signal(signal.SIGINT)
                assert process.wait(timeout=60) == 0


def longer(folder: Path) -> Path:
    """A copy of the built-in model whose context is longer: vLLM computes garbage beyond what the model says."""
    shutil.copytree(FOLDER, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": MAX_MODEL_LEN}))
    return folder


def _command(model: Path, count: int, arguments: Sequence[str]) -> list[str]:
    python = os.environ.get(PYTHON)
    assert python, f"{PYTHON} is not set; run `make test-engines`"
    return [
        *(sys.executable, "-m", "ramify.cli.main", "serve", str(model), "--json", "--replicas", str(count)),
        *("--python", python, "--device", "cpu", "--dtype", "float32"),
        *arguments,
        *("--", "--max-num-seqs", "64"),
    ]
