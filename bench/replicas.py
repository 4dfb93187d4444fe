"""Real replicas: what is cached with each placement, and what ramify costs beside a bare loop of requests.

Needs the addresses of two vLLM servers of the built-in model with a context of 2,048 tokens or more; the tests start
such ones (`real_replicas.py`), and without addresses so does this script.

Placement: trees whose prompts begin with one preamble of 512 tokens and then differ; every branch has turns of a few
sampled and 96 written tokens and forks in two behind each. A block counts as forkable if one cache of all that was sent
so far would hold it; the share of those that the servers had cached is printed, for each placement on fresh caches. The
router of sglang takes no token ids from vLLM's clients, so round robin is what is beside. Target: 95 %.

Load: the same requests, bodies and all, sent by a bare aiohttp loop and by engine `vllm`, one after the other, several
times; tokens a second and CPU a request of this process. Targets: 95 % of the throughput, 0.5 ms.

Run: RAMIFY_ENGINES_PYTHON=... python bench/replicas.py [--base-url URL,URL] [--model FOLDER]
"""

import argparse
import asyncio
import os
import statistics
import time
import zlib
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import numpy as np
from real_replicas import BLOCK, PYTHON, Served, served
from smoke import few

from ramify.core.engine import Request
from ramify.core.segment import Ids_T
from ramify.engines.fleet.placement import PlacementName
from ramify.engines.fleet.replicas import Replicas
from ramify.engines.retrying import Retrying
from ramify.engines.served.turn import Ask
from ramify.engines.served.vllm import Vllm
from ramify.engines.served.vllm_wire import Completions
from ramify.runner import loop
from ramify.testing.prefixes import KnownPrefixes

PREAMBLE, OWN, WRITTEN, SAMPLED = 512, 200, 96, 24
NUM_TREES, DEPTH = few(24, 2, book=8), 4
NUM_REQUESTS, IN_FLIGHT, REPEATS = few((768, 256, 3), (8, 4, 1), book=(256, 128, 5))


# -- placement --------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Shares:
    """Tokens of whole blocks, over all requests. Mutated by `grow`."""

    forkable: int = 0
    cached: int = 0
    requests: int = 0


async def placed(site: Served, placement: PlacementName) -> Shares:
    """Grow all trees on fresh caches."""
    engines = [Vllm(site.model, base_url=url) for url in site.urls]
    engine = Retrying(Replicas(engines, placement=placement, block_size=BLOCK))
    await engine.connect()
    for each in engines:
        await each.update_weights(str(site.model), 0)  # the same ones: only the caches are emptied
    shares, known, rng = Shares(), KnownPrefixes(BLOCK), np.random.default_rng(0)
    preamble = words(rng, PREAMBLE)
    prompts = [np.concatenate([preamble, words(rng, OWN)]) for _ in range(NUM_TREES)]
    try:
        await asyncio.gather(*(grow(engine, shares, known, tree, ids, DEPTH) for tree, ids in enumerate(prompts)))
    finally:
        await engine.close()
    return shares


async def grow(
    engine: Retrying, shares: Shares, known: KnownPrefixes, tree: int, ids: Ids_T, depth: int, path: str = ""
) -> None:
    """A turn of a branch, and then those of its two children."""
    seed = zlib.crc32(f"{tree} {path}".encode())
    request = Request(ids, SAMPLED, seed, request_id=f"{tree}/{seed:016x}", affinity=zlib.crc32(str(tree).encode()))
    forkable = known.num_known(ids)
    known.add(ids)
    generation = await engine.generate(request)
    shares.forkable += forkable
    shares.cached += min(forkable, generation.num_cached)
    shares.requests += 1
    longer = np.concatenate([ids, generation.ids, words(np.random.default_rng(seed), WRITTEN)])
    known.add(longer[: len(ids) + len(generation.ids) - 1])
    if depth > 1:
        children = (f"{path}{child}" for child in range(2))
        await asyncio.gather(*(grow(engine, shares, known, tree, longer, depth - 1, child) for child in children))


def words(rng: np.random.Generator, num: int) -> Ids_T:
    """Ids of letters: no control token among them."""
    return rng.integers(97, 122, num).astype(np.int32)


# -- load -------------------------------------------------------------------------------------------------------------


def asks(site: Served) -> list[Request]:
    rng = np.random.default_rng(1)
    preamble = words(rng, PREAMBLE)
    prompts = [np.concatenate([preamble, words(rng, 64)]) for _ in range(NUM_REQUESTS)]
    return [Request(ids, SAMPLED, number, request_id=f"load/{number}") for number, ids in enumerate(prompts)]


async def at_most(works: Sequence[Callable[[], Awaitable[int]]]) -> int:
    """Carry all out, `IN_FLIGHT` at once; the sum of what they return."""
    room = asyncio.Semaphore(IN_FLIGHT)

    async def one(work: Callable[[], Awaitable[int]]) -> int:
        async with room:
            return await work()

    return sum(await asyncio.gather(*map(one, works)))


async def bare(site: Served) -> int:
    """Tokens sampled by a loop that only posts and reads."""
    wire = Completions(site.model.name)
    ends = Vllm(site.model, base_url=site.urls[0])
    end_ids = (ends.codec.eos_id,)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def post(request: Request) -> int:
            ask = Ask(request.ids.tolist(), SAMPLED, request.seed, (), end_ids, request.sampling, 0, request.request_id)
            async with session.post(
                site.urls[0] + wire.path, data=wire.body(ask), headers={"Content-Type": "application/json"}
            ) as answer:
                return len(wire.sampled(await answer.read(), ask).ids)

        return await at_most([lambda r=request: post(r) for request in asks(site)])


async def ours(site: Served) -> int:
    """Tokens sampled through engine `vllm` and `Retrying`."""
    engine = Retrying(Vllm(site.model, base_url=site.urls[0]))
    await engine.connect()

    async def generate(request: Request) -> int:
        return (await engine.generate(request)).num_billed

    try:
        return await at_most([lambda r=request: generate(r) for request in asks(site)])
    finally:
        await engine.close()


def timed(work: Callable[[Served], Awaitable[int]], site: Served) -> tuple[float, float]:
    """Tokens a second, and CPU milliseconds a request of this process."""
    wall, cpu = time.perf_counter(), time.process_time()
    num_tokens = loop.run(work(site))
    return num_tokens / (time.perf_counter() - wall), 1e3 * (time.process_time() - cpu) / NUM_REQUESTS


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--base-url", help="of two servers, with a comma between; default: two are started")
    parser.add_argument("--model", type=Path, help="folder of their model, with --base-url")
    options = parser.parse_args()
    if options.base_url:
        site: AbstractContextManager[Served] = nullcontext(
            Served(options.model, tuple(options.base_url.split(",")), ())
        )
    elif PYTHON in os.environ:
        site = served()
    else:
        print(f"skipped: {PYTHON} names no interpreter that has vLLM; see `make test-engines`")
        return
    with site as both:
        print(f"{NUM_TREES} trees, preamble {PREAMBLE}, blocks of {BLOCK} tokens")
        placements: tuple[PlacementName, ...] = ("prefix", "round_robin")
        for placement in placements:
            found = loop.run(placed(both, placement))
            share = found.cached / found.forkable
            print(
                f"{placement:12} {share:7.1%} of {found.forkable:,} forkable tokens cached, {found.requests} requests"
            )
        runs = [(timed(bare, both), timed(ours, both)) for _ in range(REPEATS)]
        for name, index in (("bare aiohttp", 0), ("ramify", 1)):
            speed, cpu = (statistics.median(run[index][k] for run in runs) for k in range(2))
            print(f"{name:12} {speed:8,.0f} tokens/s, {cpu:.3f} ms CPU a request")
        print(f"ratio {statistics.median(run[1][0] / run[0][0] for run in runs):.3f}; target 0.95")


if __name__ == "__main__":
    main()
