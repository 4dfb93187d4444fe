"""Continuous against static batching: useful tokens per CPU second on the lengths of 256 countdown chains, batch 32.

Every chain is a prompt and as many new tokens as the recorded chain has behind its prompt, once with the calculator's
results counted and once with sampled tokens alone; recorded by running held-out problems with the built-in model (or
read from `--lengths`). Continuous: 32 slots, the next chain joins when one
leaves. Static: batches of 32 in the recorded order, every row computed to the end of the longest, as a padded batch
does; "static, rows leave" spends nothing on rows that are over. Medians of 5 runs taken in turns, one thread, the
batch-invariant engine, stop words and sampling included. Target: continuous at least 1.5 times static.
"""

import argparse
import asyncio
import json
import os
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import numpy as np
from models.countdown_episodes import result_text
from models.pieces import prompt_piece
from smoke import few

from ramify.core.engine import Request
from ramify.engines.batching import BatchingLoop
from ramify.engines.builtin import FOLDER, Builtin
from ramify.engines.numpy_model import NumpyModel
from ramify.engines.tokenizer import TokenizerFile
from ramify.tasks.countdown import MAX_CALLS, CountdownProblem, generate
from ramify.tools.calculator import CalculatorState, apply

BATCH = 32
NUM_CHAINS = few(256, 8)
MAX_TOKENS = 224
"""Of a whole chain."""
RUNS = few(5, 1)
ONE_THREAD = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
"""Read by the libraries when they are loaded, so the script starts itself again with them."""

RNG = np.random.default_rng(0)

Lengths = Sequence[tuple[int, int]]
"""(prompt tokens, new tokens) a chain."""

Recorded = Sequence[tuple[int, int, int]]
"""(prompt tokens, response tokens, of these sampled) a chain."""


class Endless(TokenizerFile):
    """The tokenizer without an end, so that a request samples exactly as many tokens as it is told."""

    @property
    def eos_id(self) -> int:
        return -1


async def record(folder: Path) -> Recorded:
    """Run the chains and return their lengths."""
    engine = Builtin(folder)
    problems = generate("heldout", NUM_CHAINS, 1)
    try:
        return await asyncio.gather(*(chain(engine, problem, seed) for seed, problem in enumerate(problems)))
    finally:
        await engine.close()


async def chain(engine: Builtin, problem: CountdownProblem, seed: int) -> tuple[int, int, int]:
    """Sample one chain with the calculator to its end."""
    codec = engine.codec
    ids = codec.encode(prompt_piece(problem.question).text, allow_special=True)
    num_prompt, num_sampled = len(ids), 0
    state = CalculatorState(problem.numbers)
    for turn in range(MAX_CALLS + 1):
        request = Request(
            np.array(ids, np.int32), num_prompt + MAX_TOKENS - len(ids), seed * 100 + turn, ("</calc>", "</answer>")
        )
        generation = await engine.generate(request)
        num_sampled += len(generation.ids)
        ids += generation.ids.tolist()
        if generation.finish.matched != "</calc>":
            break
        call = codec.decode(generation.ids).rpartition("<calc>")[2].removesuffix("</calc>")
        state, text, _ = apply(state, call)
        ids += codec.encode(result_text(text))
        if len(ids) >= num_prompt + MAX_TOKENS:
            break
    return num_prompt, len(ids) - num_prompt, num_sampled


async def continuous(loop: BatchingLoop, lengths: Lengths) -> None:
    """All chains at once; the loop's slots are the batch. Every prompt is a new one, so nothing is cached."""
    await asyncio.gather(*(loop.generate(strange_request(*length)) for length in lengths))


async def static(loop: BatchingLoop, lengths: Lengths, *, is_padded: bool = True) -> None:
    """Batch after batch, each to the end of its longest chain."""
    for start in range(0, len(lengths), BATCH):
        batch = lengths[start : start + BATCH]
        longest = max(num for _, num in batch)
        await continuous(loop, [(prompt, longest if is_padded else num) for prompt, num in batch])


async def static_rows_leave(loop: BatchingLoop, lengths: Lengths) -> None:
    """Batch after batch, a row that is over costs nothing more."""
    await static(loop, lengths, is_padded=False)


def strange_request(num_prompt: int, num_new: int) -> Request:
    ids = RNG.integers(0, 256, num_prompt).astype(np.int32)
    return Request(ids, num_new, int(RNG.integers(1 << 62)), stops=("</calc>!", "</answer>!"))


async def compare(folder: Path, lengths: Lengths) -> None:
    """Print useful tokens per CPU second of each way."""
    model = NumpyModel(folder, num_slots=BATCH)
    loop = BatchingLoop(model, Endless(folder / "tokenizer.json"))
    ways: dict[str, Callable[[BatchingLoop, Lengths], Awaitable[None]]] = {
        "continuous": continuous,
        "static": static,
        "static, rows leave": static_rows_leave,
    }
    useful = sum(num for _, num in lengths)
    speeds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(RUNS):
        for name, way in ways.items():
            began = time.process_time()
            await way(loop, lengths)
            speeds[name].append(useful / (time.process_time() - began))
    await loop.close()
    news = [num for _, num in lengths]
    print(f"{len(lengths)} chains of {min(news)} to {max(news)} tokens, mean {useful / len(news):.1f}; batch {BATCH}")
    medians = {name: statistics.median(values) for name, values in speeds.items()}
    for name, median in medians.items():
        print(f"{name:20} {median:8,.0f} useful tokens per CPU second, {median / medians['static']:.2f} x static")


async def run(options: argparse.Namespace) -> None:
    folder: Path = options.folder
    recorded = json.loads(options.lengths.read_text()) if options.lengths else await record(folder)
    if options.save:
        options.save.write_text(json.dumps(recorded))
    print("whole responses: ", end="")
    await compare(folder, [(prompt, response) for prompt, response, _ in recorded])
    print("sampled tokens alone: ", end="")
    await compare(folder, [(prompt, sampled) for prompt, _, sampled in recorded])


def main() -> None:
    if not ONE_THREAD.items() <= os.environ.items():
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **ONE_THREAD})
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=FOLDER, help="model folder; the shipped one by default")
    parser.add_argument("--lengths", type=Path, help="JSON list of [prompt, response, sampled] tokens")
    parser.add_argument("--save", type=Path, help="write the lengths used to this file")
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
