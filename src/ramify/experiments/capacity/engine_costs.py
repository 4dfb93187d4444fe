"""Engine costs: what a step of an engine that runs takes, measured by batches of several sizes."""

import asyncio
from collections.abc import Sequence
from typing import Final

import numpy as np

from ramify.config.run_config import RunConfig
from ramify.core.engine import Engine, Request
from ramify.core.segment import token_array
from ramify.planner.fleet_size import EngineCosts, fitted_costs
from ramify.runner import build, loop
from ramify.runner.deadline import finished
from ramify.runner.run import Run

BATCHES: Final = (1, 4, 16, 64)
"""Requests at once."""


def measured_costs(
    config: RunConfig, *, context_tokens: Sequence[int] = (64, 512), new_tokens: int = 48
) -> EngineCosts:
    """Costs of the configured engine: batches of several sizes are sent and timed. Raises what the engine raises."""
    return loop.run(_measured(config, context_tokens, new_tokens))


async def _measured(config: RunConfig, context_tokens: Sequence[int], new_tokens: int) -> EngineCosts:
    run = Run(build.prepared_run(config))
    try:
        await run.connect()
        engine = run.prepared.engine
        text = " ".join(problem.question for problem in run.prepared.problems) + " "
        ids = run.prepared.codec.encode(text)
        longest = engine.capabilities.context_length - new_tokens
        lengths = sorted({min(length, longest) for length in context_tokens})
        rows: list[list[float]] = []
        seconds: list[float] = []
        seed = 0
        for _ in range(2):
            for batch in BATCHES:
                for length in lengths:
                    seed += batch
                    contexts = [_context(ids, length, seed + i) for i in range(batch)]
                    row, took = await _timed(engine, contexts, new_tokens, seed)
                    rows.append(row)
                    seconds.append(took)
        half = len(rows) // 2
        # The first round warms the engine up.
        return fitted_costs(rows[half:], seconds[half:])
    finally:
        await finished(run.close())


def _context(ids: Sequence[int], length: int, number: int) -> list[int]:
    """A context that begins as no other does."""
    rng = np.random.default_rng(number)
    return [ids[i] for i in rng.integers(len(ids), size=length)]


async def _timed(
    engine: Engine, contexts: Sequence[Sequence[int]], new_tokens: int, seed: int
) -> tuple[list[float], float]:
    """What a batch came to, as a row of `fitted_costs`, and its seconds."""
    clock = asyncio.get_running_loop().time
    began = clock()
    requests = [
        Request(token_array(context), max_tokens=new_tokens, seed=seed + i) for i, context in enumerate(contexts)
    ]
    answers = await asyncio.gather(*map(engine.generate, requests))
    took = clock() - began
    lengths = np.array([len(answer.ids) for answer in answers], np.float64)
    held = np.array([len(context) for context in contexts], np.float64)
    read = float((lengths * held + lengths * (lengths - 1) / 2).sum())
    computed = float(sum(len(context) - answer.num_cached for context, answer in zip(contexts, answers, strict=True)))
    return [float(lengths.max()), float(lengths.sum()), read, computed, float(len(contexts))], took
