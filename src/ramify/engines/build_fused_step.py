"""Build the fused step: compile `fused_step.c`, compare it with numpy bit for bit, and put it where it is found.

The command `BUILD` does it, with this machine's C compiler or the one that `CC` names. The library goes into the cache
folder of the user.
"""

import ctypes
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from ramify.core.errors import ConfigError
from ramify.engines.fused_step import FLAGS, SOURCE, built, numpy_blas, place
from ramify.engines.numpy_model import NumpyModel
from ramify.engines.shipped import MODELS
from ramify.engines.slot_model import Chunk, Rows


def build() -> Path:
    """Compile the library, compare it with numpy, and put it where `built` finds it. Raises `ConfigError`, in the
    compiler's own words, if there is no compiler or it fails, and if any bit differs."""
    compiler = shlex.split(os.environ.get("CC") or "cc")
    target = place()
    target.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=target.parent) as folder:
        file = Path(folder) / target.name
        command = [*compiler, *FLAGS, f"-DBLAS_INT={numpy_blas()[1]}", str(SOURCE), "-o", str(file), "-lm"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
        except OSError as error:
            raise ConfigError(f"the fused step needs a C compiler; name it by CC: {error}") from error
        if done.returncode:
            raise ConfigError(f"{shlex.join(command)} ended with {done.returncode}:\n{done.stderr.strip()}")
        _compare(ctypes.CDLL(str(file)))
        file.chmod(0o700)
        file.replace(target)
    built.cache_clear()
    return target


def _compare(library: ctypes.CDLL) -> None:
    """Raise `ConfigError` unless the library computes the bits of numpy: contexts, then rows of them."""
    models = [NumpyModel(MODELS["builtin"], num_slots=6) for _ in range(2)]
    for model, by in zip(models, (library, None), strict=True):
        model.fuse(by)
    for step, (rows, chunks) in enumerate(_trial(models[0].vocab_size)):
        ours, theirs = (model.forward(rows, chunks) for model in models)
        if ours.tobytes() != theirs.tobytes():
            raise ConfigError(
                f"the compiled step gives other bits than numpy {np.__version__} on this {platform.machine()} (step "
                f"{step}, by at most {abs(ours - theirs).max():.2g}): it is not kept, and numpy goes on alone"
            )


def _trial(vocab_size: int) -> Iterator[tuple[Rows, list[Chunk]]]:
    drawn = np.random.default_rng(0)
    lengths = np.array([1, 7, 63, 64, 65, 200])
    chunks = [Chunk(slot, 0, drawn.integers(0, vocab_size, n).astype(np.int32)) for slot, n in enumerate(lengths)]
    none = np.zeros(0, np.intp)
    yield Rows(none, none, np.zeros(0, np.int32)), chunks
    for count in (1, 2, 5, 6):
        slots = np.arange(count)
        yield Rows(slots, lengths[slots], drawn.integers(0, vocab_size, count).astype(np.int32)), []
        lengths[slots] += 1


if __name__ == "__main__":
    try:
        print(build())  # noqa: T201
    except ConfigError as error:
        sys.exit(f"error: {error}")
