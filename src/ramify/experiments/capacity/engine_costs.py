"""Engine costs: what a step of an engine that runs takes, measured by paths like those of the workload.

Batches of several sizes are walked turn by turn, as a run walks its paths: a prompt, sampled tokens, the tokens of a
tool behind them. All engines walk at the same time, so engines that share cores with each other are measured sharing
them.
"""

import asyncio
import statistics
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from itertools import cycle, islice
from typing import Final

import numpy as np

from ramify.config.run_config import RunConfig
from ramify.core.engine import Engine, Generation, Request
from ramify.core.segment import Ids_T, token_array
from ramify.experiments.capacity.fleet_size import fitted_costs
from ramify.experiments.capacity.workload import Workload
from ramify.runner import build, loop
from ramify.runner.deadline import finished
from ramify.runner.run import Run
from ramify.testing.simulated_server import SimulatedCosts

BATCHES: Final = (1, 4, 16, 64)
"""Paths at once."""
NUM_TURNS: Final = 4
"""Turns that are walked, if the engine's context is long enough."""

Measured = tuple[list[float], float]
"""What a batch of requests came to, as a row of `fitted_costs`, and its seconds."""


def measured_costs(config: RunConfig, workload: Workload) -> SimulatedCosts:
    """Costs of one engine of the run, in seconds. Every address of its `base_url` is an engine that is measured;
    without one, an engine is made here. Sends 2 x 85 paths of up to 4 turns to each. Raises what an engine raises."""
    one = replace(config.engine, replicas=min(config.engine.replicas, 1))
    engines = [replace(one, base_url=url) for url in one.base_urls] or [one]
    return loop.run(_measured([replace(config, engine=engine) for engine in engines], workload))


async def _measured(configs: Sequence[RunConfig], workload: Workload) -> SimulatedCosts:
    async with AsyncExitStack() as stack:
        paths = [await stack.enter_async_context(_paths(config, workload)) for config in configs]
        measured: list[Measured] = []
        for is_warm in (False, True):
            for batch in BATCHES:
                found = await asyncio.gather(*(each.walk(batch) for each in paths))
                measured += [row for rows in found for row in rows] if is_warm else []
    rows, seconds = zip(*measured, strict=True)
    return fitted_costs(rows, seconds)


@asynccontextmanager
async def _paths(config: RunConfig, workload: Workload) -> "AsyncIterator[_Paths]":
    run = Run(build.prepared_run(config))
    try:
        await run.connect()
        text = " ".join(problem.question for problem in run.prepared.problems) + " "
        yield _Paths(run.prepared.engine, run.prepared.codec.encode(text), workload)
    finally:
        await finished(run.close())


class _Paths:
    """Paths of one engine. Their tokens are random, so that no prompt is cached."""

    def __init__(self, engine: Engine, ids: Sequence[int], workload: Workload) -> None:
        """`ids`: the tokens are drawn from these."""
        self._engine = engine
        self._ids = ids
        self._rng = np.random.default_rng(0)
        self._room = engine.capabilities.context_length
        self._prompt = min(workload.prompt_tokens, self._room // 2)
        mean = min(round(statistics.mean(workload.turn_tokens)), self._room // 4)
        # Turns of two lengths tell the steps from what a request costs whatever its length.
        self._turns = list(islice(cycle([max(1, mean // 2), max(2, mean + mean // 2)]), NUM_TURNS))
        self._tool = round(statistics.mean(workload.tool_tokens))

    async def walk(self, batch: int) -> list[Measured]:
        """Walk `batch` new paths, and return what each turn of them took."""
        contexts = [self._drawn(self._prompt) for _ in range(batch)]
        measured: list[Measured] = []
        for new_tokens in self._turns:
            if max(map(len, contexts)) + new_tokens > self._room:
                break
            clock = asyncio.get_running_loop().time
            began = clock()
            answers = await self._answers(contexts, new_tokens)
            measured.append((_row(contexts, answers), clock() - began))
            contexts = [
                np.concatenate([context, answer.ids, self._drawn(self._tool)])
                for context, answer in zip(contexts, answers, strict=True)
            ]
        return measured

    async def _answers(self, contexts: Sequence[Ids_T], new_tokens: int) -> list[Generation]:
        requests = [Request(context, max_tokens=new_tokens, seed=seed) for seed, context in enumerate(contexts)]
        return await asyncio.gather(*map(self._engine.generate, requests))

    def _drawn(self, number: int) -> Ids_T:
        return token_array(self._rng.choice(self._ids, number))


def _row(contexts: Sequence[Ids_T], answers: Sequence[Generation]) -> list[float]:
    """A row of `fitted_costs`."""
    lengths = np.array([len(answer.ids) for answer in answers], np.float64)
    held = np.array([len(context) for context in contexts], np.float64)
    read = float((lengths * held + lengths * (lengths - 1) / 2).sum())
    computed = float(sum(len(context) - answer.num_cached for context, answer in zip(contexts, answers, strict=True)))
    return [float(lengths.max()), float(lengths.sum()), read, computed, float(len(contexts))]
