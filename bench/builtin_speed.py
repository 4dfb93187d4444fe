"""Tokens per CPU second of the built-in model, one thread: batch-invariant and not, beside `model.generate`.

32 prompt tokens and 56 new ones a request, float32, prompts computed inside the time taken; medians of 5 runs, the
modes taking turns so that a busy machine slows all of them. "Siblings" are samples of one prompt, whose keys and values
are copied; "strangers" have a prompt each. "Fused" is batch-invariant by the compiled step, whose bits are those of
numpy; it is built first, and "times numpy" is the median of pairs. Targets: 800 at batch 1 and 6,000 at 64
batch-invariant, 1.5 times as many fused, 1,600 and 12,000 without. `model.generate` (strangers) is measured where torch
and transformers are installed.
"""

import argparse
import asyncio
import importlib.util
import os
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from smoke import few

from ramify.core.engine import Request
from ramify.core.errors import ConfigError
from ramify.engines.batching import BatchingLoop
from ramify.engines.build_fused_step import build
from ramify.engines.builtin import FOLDER
from ramify.engines.fused_step import built
from ramify.engines.numpy_model import NumpyModel
from ramify.engines.tokenizer import TokenizerFile

BATCHES = few((1, 8, 32, 64), (1,))
RUNS = few(5, 1)
NUM_PROMPT = 32
NUM_NEW = few(56, 4)

ONE_THREAD = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
"""Read by the libraries when they are loaded, so the script starts itself again with them."""

Measure = Callable[[int], Awaitable[float]]
"""Batch size -> tokens per CPU second of one run."""


class Endless(TokenizerFile):
    """The tokenizer without an end, so that every request samples as many tokens as it may."""

    @property
    def eos_id(self) -> int:
        return -1


def loop_measure(folder: Path, mode: str, *, are_siblings: bool) -> Measure:
    """Measure the batching loop on the numpy model."""
    model = NumpyModel(folder, is_batch_invariant=mode != "not invariant")
    model.fuse(built() if mode == "fused" else None)
    loop = BatchingLoop(model, Endless(folder / "tokenizer.json"))
    rng = np.random.default_rng(0)

    async def measure(batch: int) -> float:
        prompts = rng.integers(0, model.vocab_size, (batch, NUM_PROMPT)).astype(np.int32)
        if are_siblings:
            prompts[:] = prompts[0]
        requests = [
            Request(ids, NUM_NEW, int(rng.integers(1 << 62)), stops=("</calc>!",), measures=frozenset({"entropy"}))
            for ids in prompts
        ]
        began = time.process_time()
        generations = await asyncio.gather(*(loop.generate(request) for request in requests))
        return sum(len(g.ids) for g in generations) / (time.process_time() - began)

    return measure


def generate_measure(folder: Path) -> Measure:
    """Measure `model.generate` of transformers."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    model.generation_config.max_length = None  # the folder's default length, which max_new_tokens replaces
    rng = np.random.default_rng(0)

    async def measure(batch: int) -> float:
        prompts = torch.from_numpy(rng.integers(0, model.config.vocab_size, (batch, NUM_PROMPT)))
        began = time.process_time()
        with torch.no_grad():
            out = model.generate(
                prompts,
                attention_mask=torch.ones_like(prompts),
                do_sample=True,
                max_new_tokens=NUM_NEW,
                min_new_tokens=NUM_NEW,
            )
        return batch * (out.shape[1] - NUM_PROMPT) / (time.process_time() - began)

    return measure


def modes() -> list[str]:
    """Ways of computing; without a C compiler there is no fused step."""
    try:
        build()
    except ConfigError as error:
        print(f"no fused step: {error}")
        return ["batch-invariant", "not invariant"]
    return ["batch-invariant", "fused", "not invariant"]


async def compare(measures: dict[str, Measure]) -> None:
    """Print one line a way of running, one column a batch size."""
    print(f"{'tokens per CPU second, batch':40}" + "".join(f"{batch:>9,}" for batch in BATCHES))
    results: dict[str, list[float]] = {name: [] for name in measures}
    ratios: dict[str, list[float]] = defaultdict(list)
    for measure in measures.values():
        await measure(BATCHES[-1])  # touches all memory a first time
    for batch in BATCHES:
        runs: dict[str, list[float]] = {name: [] for name in measures}
        for _ in range(RUNS):
            for name, measure in measures.items():
                runs[name].append(await measure(batch))
        for name, speeds in runs.items():
            results[name].append(statistics.median(speeds))
        for fused in (name for name in runs if name.startswith("fused")):
            pairs = zip(runs[fused], runs[fused.replace("fused", "batch-invariant")], strict=True)
            ratios[f"{fused}: times numpy"].append(statistics.median(ours / theirs for ours, theirs in pairs))
    for name, medians in results.items():
        print(f"{name:40}" + "".join(f"{median:9,.0f}" for median in medians))
    for name, medians in ratios.items():
        print(f"{name:40}" + "".join(f"{median:9.2f}" for median in medians))


def main() -> None:
    if not ONE_THREAD.items() <= os.environ.items():
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **ONE_THREAD})
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=FOLDER, help="model folder; the shipped one by default")
    folder: Path = parser.parse_args().folder
    with TemporaryDirectory() as caches:
        os.environ["XDG_CACHE_HOME"] = caches  # A bench changes nothing of its user's.
        measure(folder)


def measure(folder: Path) -> None:
    """Compare all ways of computing the model of a folder."""
    measures = {
        f"{mode}, {kind}": loop_measure(folder, mode, are_siblings=kind == "siblings")
        for mode in modes()
        for kind in ("siblings", "strangers")
    }
    if importlib.util.find_spec("torch") and importlib.util.find_spec("transformers"):
        measures["model.generate"] = generate_measure(folder)
    asyncio.run(compare(measures))


if __name__ == "__main__":
    main()
