"""Engine `local` against `model.generate` in static batches: useful tokens per CPU second, batch 32, one thread.

The built-in model in torch, float32. 256 held-out countdown problems are run once with the built-in engine (preset
`chains`, one chain a problem) to record (prompt tokens, response tokens) of each; then prompts of these lengths are
continued by as many tokens, sampled at temperature 1. `local`: the engine's batching loop on 32 slots, the next chain
joins when one leaves; stops, logprobs and a seed a request included. `static`: transformers' own `generate` on batches
of 32 in the recorded order, prompts padded in front, each to the end of its longest row. `sampled` lengths count the
model's tokens alone, `whole` ones the tools' as well. Medians of runs taken in turns. Target: a ratio of 1.5.

Runs with torch and transformers: PYTHONPATH=src python bench/local_batching.py
"""

import argparse
import asyncio
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence

import numpy as np
from smoke import few

import ramify
from ramify.core.engine import Request
from ramify.engines.batching import BatchingLoop
from ramify.engines.builtin import FOLDER, Builtin
from ramify.engines.tokenizer import TokenizerFile

try:
    import torch
    from transformers.utils import logging

    from ramify.engines.model_folder import ModelFolder
    from ramify.engines.transformers_model import TransformersModel
except ImportError as error:
    print(f"skipped: {error}; pip install 'ramify[hf]'")
    sys.exit()

BATCH = 32
NUM_CHAINS = few(256, 8, book=64)
TARGET = 1.5
ONE_THREAD = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
"""Read by the libraries when they are loaded, so the script starts itself again with them."""

RNG = np.random.default_rng(0)

Lengths = Sequence[tuple[int, int]]
"""(prompt tokens, new tokens) a chain."""


class Endless(TokenizerFile):
    """The tokenizer without an end, so that a request samples exactly as many tokens as it is told."""

    @property
    def eos_id(self) -> int:
        return -1


def recorded() -> dict[str, Lengths]:
    """Lengths of one chain a problem, in the order of the problems."""
    done = ramify.rollout_sync(
        preset="chains", engine=Builtin(), prompts=NUM_CHAINS, seed=1, strategy__options={"n": 1}
    )
    branches = [tree.branch(leaf) for tree in done.trees for leaf in tree.leaves()]
    return {
        "whole": [(b.num_prompt, len(b) - b.num_prompt) for b in branches],
        "sampled": [(b.num_prompt, int(b.is_sampled.sum())) for b in branches],
    }


def continuous(loop: BatchingLoop, lengths: Lengths) -> None:
    """All chains at once; the loop's slots are the batch. Every prompt is a new one, so nothing is cached."""

    async def all_of_them() -> None:
        await asyncio.gather(*(loop.generate(request(*length)) for length in lengths))
        await loop.close()

    asyncio.run(all_of_them())


def request(num_prompt: int, num_new: int) -> Request:
    ids = RNG.integers(0, 256, num_prompt).astype(np.int32)
    return Request(ids, num_new, int(RNG.integers(1 << 62)), stops=("</calc>!", "</answer>!"))


@torch.inference_mode()
def static(network: torch.nn.Module, lengths: Lengths) -> None:
    """Batch after batch, prompts padded in front, each to the end of its longest chain."""
    for start in range(0, len(lengths), BATCH):
        batch = lengths[start : start + BATCH]
        width, longest = max(prompt for prompt, _ in batch), max(num for _, num in batch)
        ids = torch.from_numpy(RNG.integers(0, 256, (len(batch), width)))
        is_token = torch.tensor([[0] * (width - prompt) + [1] * prompt for prompt, _ in batch])
        network.generate(
            input_ids=ids,
            attention_mask=is_token,
            do_sample=True,
            top_k=0,
            min_new_tokens=longest,
            max_new_tokens=longest,
            pad_token_id=0,
        )


def compared(lengths: Lengths, num_runs: int) -> dict[str, float]:
    """Useful tokens per CPU second of each way."""
    folder = ModelFolder(FOLDER)
    network = folder.network("float32")
    model = TransformersModel(folder, num_slots=BATCH, device="cpu")
    codec = Endless(FOLDER / "tokenizer.json")
    ways: dict[str, Callable[[], None]] = {
        "local": lambda: continuous(BatchingLoop(model, codec), lengths),
        "static": lambda: static(network, lengths),
    }
    useful = sum(num for _, num in lengths)
    speeds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(num_runs):
        for name, way in ways.items():
            began = time.process_time()
            way()
            speeds[name].append(useful / (time.process_time() - began))
    return {name: statistics.median(values) for name, values in speeds.items()}


def main() -> None:
    if not ONE_THREAD.items() <= os.environ.items():
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **ONE_THREAD})
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=few(3, 1))
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.set_verbosity_error()
    for kind, lengths in recorded().items():
        news = [num for _, num in lengths]
        print(f"{kind}: {len(news)} chains of {min(news)} to {max(news)} tokens, mean {sum(news) / len(news):.1f}")
        speeds = compared(lengths, options.runs)
        for name, speed in speeds.items():
            print(f"  {name:8} {speed:8,.0f} useful tokens per CPU second")
        ratio = speeds["local"] / speeds["static"]
        print(f"  ratio {ratio:.2f}, target {TARGET}: {'met' if ratio >= TARGET else 'MISSED'}", flush=True)


if __name__ == "__main__":
    main()
