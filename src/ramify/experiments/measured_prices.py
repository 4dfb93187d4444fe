"""Measured prices: measures how many seconds an engine's tokens take on this machine.

Contexts are made of the task's questions. Each is sent three times: new, again while the engine's cache may hold it,
and for a longer continuation. A least-squares fit of the seconds to the token counts that the engine reports gives the
seconds per token. One request runs at a time, so an engine that batches many requests decodes at a lower price.
"""

import asyncio
from collections.abc import Sequence
from typing import Final

import numpy as np

from ramify.config.run_config import RunConfig
from ramify.core.codec import Codec
from ramify.core.engine import Engine, Generation, Request
from ramify.core.errors import ConfigError
from ramify.core.prices import Prices
from ramify.core.segment import token_array
from ramify.runner import build, loop
from ramify.runner.deadline import finished
from ramify.runner.run import Run

NUM_CONTEXTS: Final = 8
CONTEXT_TOKENS: Final = 192
CONTINUED: Final = 32
TimedGeneration = tuple[Generation, float]
"""(generation, its seconds)"""


def measured_prices(config: RunConfig) -> Prices:
    """Prices in seconds per million tokens instead of dollars. Raises `ConfigError` if the engine does not count
    tokens."""
    return loop.run(_measured(config))


async def _measured(config: RunConfig) -> Prices:
    run = Run(build.prepared_run(config))
    try:
        await run.connect()
        text = " ".join(problem.question for problem in run.prepared.problems)
        return prices_of(
            [
                timed
                for context in _contexts(run.prepared.codec, text)
                for timed in await _asked(run.prepared.engine, context)
            ]
        )
    finally:
        await finished(run.close())


def prices_of(timed: Sequence[TimedGeneration]) -> Prices:
    """Prices from a least-squares fit; none is below 0. Raises `ConfigError` if no sampled token is counted."""
    counts = np.array([[g.num_prefilled, g.num_cached, g.num_billed] for g, _ in timed], np.float64)
    if not counts[:, 2].any():
        raise ConfigError("the engine does not report how many tokens it sampled, so its prices cannot be measured")
    seconds = np.array([seconds for _, seconds in timed])
    found = np.linalg.lstsq(counts, seconds, rcond=None)[0]
    new, cached, output = (float(max(each, 0.0) * 1e6) for each in found)
    return Prices(prompt=new, cached=min(cached, new), output=output)


def _contexts(codec: Codec, text: str) -> list[list[int]]:
    """Contexts with different beginnings, so that none is the prefix of another."""
    ids = list(codec.encode(text))
    while len(ids) < CONTEXT_TOKENS + NUM_CONTEXTS:
        ids += ids
    return [ids[start : start + CONTEXT_TOKENS] for start in range(NUM_CONTEXTS)]


async def _asked(engine: Engine, context: Sequence[int]) -> list[TimedGeneration]:
    clock = asyncio.get_running_loop().time
    found: list[TimedGeneration] = []
    for seed, max_tokens in enumerate((1, 1, CONTINUED)):
        began = clock()
        generation = await engine.generate(Request(token_array(context), max_tokens=max_tokens, seed=seed))
        found.append((generation, clock() - began))
    return found
