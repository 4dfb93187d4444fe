"""What an engine of a server costs beside bare aiohttp: milliseconds a request, with 1 to 512 in flight.

A small server in a process of its own answers vLLM's `/v1/completions` at once with 64 tokens and their logprobs. The
same requests, bodies and all, are sent by a loop that only posts and decodes the answer, and by engine `vllm` with
retries; the two take turns, `--rounds` times. `wall` counts the server's work too; `CPU` is this process's own. A ratio
is the median of the rounds' ratios. Target: at most 1.3 of the bare loop's wall time.

Run: python bench/http_overhead.py [--requests 3000] [--rounds 5] [--profile]
"""

import argparse
import asyncio
import cProfile
import pstats
import statistics
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import aiohttp
import numpy as np
from instant_vllm import completion, instant_servers
from smoke import few

from ramify.core.engine import Request
from ramify.engines.builtin import FOLDER
from ramify.engines.retrying import Retrying
from ramify.engines.served.turn import Ask
from ramify.engines.served.vllm import Vllm
from ramify.engines.served.vllm_wire import Completions
from ramify.runner import loop

IN_FLIGHT = few((1, 8, 64, 512), (1, 4))
NUM_CONTEXT, NUM_SAMPLED = 512, 64


IDS = [97 + i % 20 for i in range(NUM_SAMPLED)]
TOP = [{f"token_id:{each}": -0.5, "token_id:120": -1.5} for each in IDS]


def same_tokens(asked: Mapping[str, Any]) -> bytes:
    """The same tokens for every request, or the first of them."""
    number = min(asked["max_tokens"], NUM_SAMPLED)
    choice = {
        "token_ids": IDS[:number],
        "finish_reason": "length",
        "stop_reason": None,
        "logprobs": {"token_logprobs": [-0.5] * number, "top_logprobs": TOP[:number]},
    }
    return completion(asked["request_id"], len(asked["prompt"]), choice)


# -- the clients ------------------------------------------------------------------------------------------------------


def requests(number: int) -> list[Request]:
    rng = np.random.default_rng(0)
    return [
        Request(rng.integers(97, 122, NUM_CONTEXT).astype(np.int32), NUM_SAMPLED, i, topk=1, request_id=f"{i}")
        for i in range(number)
    ]


async def at_most(in_flight: int, post: Callable[[Request], Awaitable[int]], asked: Sequence[Request]) -> None:
    """Send all, so many at once, each worker one after the other."""
    left = iter(asked)

    async def work() -> None:
        for request in left:
            assert await post(request) == NUM_SAMPLED

    await asyncio.gather(*(work() for _ in range(in_flight)))


async def bare(url: str, in_flight: int, asked: Sequence[Request]) -> tuple[float, float]:
    wire, end_ids = Completions(str(FOLDER)), (Vllm(FOLDER, base_url=url).codec.eos_id,)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def post(request: Request) -> int:
            ask = Ask(
                request.ids.tolist(), NUM_SAMPLED, request.seed, (), end_ids, request.sampling, 1, request.request_id
            )
            headers = {"Content-Type": "application/json"}
            async with session.post(url + wire.path, data=wire.body(ask), headers=headers) as answer:
                return len(wire.sampled(await answer.read(), ask).ids)

        return await timed(in_flight, post, asked)


async def ours(url: str, in_flight: int, asked: Sequence[Request]) -> tuple[float, float]:
    engine = Retrying(Vllm(FOLDER, base_url=url, max_in_flight=512))
    await engine.connect()

    async def post(request: Request) -> int:
        return (await engine.generate(request)).num_billed

    try:
        return await timed(in_flight, post, asked)
    finally:
        await engine.close()


async def timed(
    in_flight: int, post: Callable[[Request], Awaitable[int]], asked: Sequence[Request]
) -> tuple[float, float]:
    """Milliseconds a request: wall and CPU. Connections are opened before."""
    await at_most(in_flight, post, asked[:in_flight])
    wall, cpu = time.perf_counter(), time.process_time()
    await at_most(in_flight, post, asked)
    return tuple(1e3 * each / len(asked) for each in (time.perf_counter() - wall, time.process_time() - cpu))  # type: ignore[return-value]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=few(3000, 16))
    parser.add_argument("--rounds", type=int, default=few(5, 1))
    parser.add_argument("--profile", action="store_true", help="where the CPU of 64 in flight goes")
    arguments = parser.parse_args()
    asked = requests(arguments.requests)
    with instant_servers(same_tokens) as (url,):
        if arguments.profile:
            profile = cProfile.Profile()
            profile.enable()
            loop.run(ours(url, 64, asked))
            profile.disable()
            pstats.Stats(profile).sort_stats("cumulative").print_stats("ramify|aiohttp|timeouts|contextlib", 60)
            return
        print(f"{'in flight':>9} {'bare wall ms':>13} {'CPU ms':>8} {'ours wall ms':>13} {'CPU ms':>8} {'ratio':>7}")
        for in_flight in IN_FLIGHT:
            rounds = [
                (loop.run(bare(url, in_flight, asked)), loop.run(ours(url, in_flight, asked)))
                for _ in range(arguments.rounds)
            ]
            middle = [statistics.median(each[side][part] for each in rounds) for side in (0, 1) for part in (0, 1)]
            ratio = statistics.median(each[1][0] / each[0][0] for each in rounds)
            print(
                f"{in_flight:9} {middle[0]:13.3f} {middle[1]:8.3f} {middle[2]:13.3f} {middle[3]:8.3f} {ratio:7.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
