"""Engine costs: what a step of an engine that runs takes, measured by batches of several sizes."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from ramify.config.run_config import RunConfig
from ramify.core.engine import Engine, Request
from ramify.core.segment import Ids_T, token_array
from ramify.experiments.capacity.fleet_size import fitted_costs
from ramify.runner import build, loop
from ramify.runner.deadline import finished
from ramify.runner.run import Run
from ramify.testing.simulated_server import SimulatedCosts

BATCHES: Final = (1, 4, 16, 64)
"""Requests at once."""


def measured_costs(
    config: RunConfig, *, context_tokens: Sequence[int] = (64, 512), new_tokens: int = 48
) -> SimulatedCosts:
    """Costs of one engine: batches of several sizes are sent and timed. Of several replicas the first is measured,
    since a batch that two of them share takes less than it would on one. Raises what the engine raises."""
    engine = replace(config.engine, replicas=min(config.engine.replicas, 1))
    if engine.base_urls:
        engine = replace(engine, base_url=engine.base_urls[0])
    return loop.run(_measured(replace(config, engine=engine), context_tokens, new_tokens))


async def _measured(config: RunConfig, context_tokens: Sequence[int], new_tokens: int) -> SimulatedCosts:
    run = Run(build.prepared_run(config))
    try:
        await run.connect()
        engine = run.prepared.engine
        text = " ".join(problem.question for problem in run.prepared.problems) + " "
        ids = run.prepared.codec.encode(text)
        longest = engine.capabilities.context_length - new_tokens
        lengths = sorted({min(length, longest) for length in context_tokens})
        rng = np.random.default_rng(0)

        async def timed_round() -> list[tuple[list[float], float]]:
            return [
                await _timed(engine, [token_array(rng.choice(ids, length)) for _ in range(batch)], new_tokens)
                for batch in BATCHES
                for length in lengths
            ]

        await timed_round()  # warms the engine up
        rows, seconds = zip(*await timed_round(), strict=True)
        return fitted_costs(rows, seconds)
    finally:
        await finished(run.close())


async def _timed(engine: Engine, contexts: Sequence[Ids_T], new_tokens: int) -> tuple[list[float], float]:
    """What a batch of requests came to, as a row of `fitted_costs`, and its seconds."""
    clock = asyncio.get_running_loop().time
    began = clock()
    requests = [Request(context, max_tokens=new_tokens, seed=seed) for seed, context in enumerate(contexts)]
    answers = await asyncio.gather(*map(engine.generate, requests))
    took = clock() - began
    lengths = np.array([len(answer.ids) for answer in answers], np.float64)
    held = np.array([len(context) for context in contexts], np.float64)
    read = float((lengths * held + lengths * (lengths - 1) / 2).sum())
    computed = float(sum(len(context) - answer.num_cached for context, answer in zip(contexts, answers, strict=True)))
    return [float(lengths.max()), float(lengths.sum()), read, computed, float(len(contexts))], took
