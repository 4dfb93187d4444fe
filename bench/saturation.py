"""How many turns a second one process feeds, and what a simulated day takes.

- saturation: a run of engine `vllm` with a journal against servers in other processes that answer at once, with 64 to
  512 paths in flight. Each path calls a calculator three times and answers. What binds is the growing process, so CPU a
  turn says how many turns a second a core of it feeds, and how many GPUs that is at 200 and at 1,000 tokens a turn, if
  a GPU samples 2,500 tokens a second, which is assumed. Beside it posts by a bare aiohttp loop (`http_overhead.py`).
  Medians of the rounds.
- day: trees on eight modelled servers until a day of virtual time is over. After each eighth of it: nodes so far, CPU a
  node in that eighth and resident memory, which must not grow.

Run: python bench/saturation.py [--part saturation|day] [--rounds 5] [--hours 24] [--smoke]
"""

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from http_overhead import bare, requests, same_tokens
from instant_vllm import completion, instant_servers
from many_trees import resident_bytes
from smoke import few

from ramify.config.configure import resolve
from ramify.config.run_config import RunConfig
from ramify.core.problem import Problem
from ramify.engines.builtin import FOLDER
from ramify.engines.fleet.replicas import Replicas
from ramify.experiments.capacity.workload import Speaker, Workload, between, stand_in_task
from ramify.runner import folder, loop
from ramify.runner.build import prepared_run
from ramify.runner.events import Event, TreeClosed
from ramify.runner.run import Run
from ramify.testing.clock import run_virtual
from ramify.testing.simulated import Simulated

NUM_SERVERS = 2
NUM_CALLS = 3
IN_FLIGHT = few((64, 512), (4,))
NUM_TREES = few(256, 4, book=128)
CALL, ANSWER = (273, 55, 43, 49, 274), (277, 55, 43, 49, 278)
"""`<calc>7+1</calc>` and `<answer>7+1</answer>`, in the built-in model's tokens."""
GPU_TOKENS_S = 2500.0
"""Sampled tokens a second of one GPU under load; assumed."""


# -- saturation -------------------------------------------------------------------------------------------------------


def call_or_answer(asked: Mapping[str, Any]) -> bytes:
    """A call until there were enough, then an answer."""
    ids = CALL if asked["prompt"].count(CALL[-1]) < NUM_CALLS else ANSWER
    ids = ids[: asked["max_tokens"]]
    matched = {CALL[-1]: "</calc>", ANSWER[-1]: "</answer>"}.get(ids[-1])
    choice = {
        "token_ids": ids,
        "finish_reason": "stop" if matched else "length",
        "stop_reason": matched,
        "logprobs": {"token_logprobs": [-0.5] * len(ids), "top_logprobs": [{f"token_id:{i}": -0.5} for i in ids]},
    }
    return completion(asked["request_id"], len(asked["prompt"]), choice)


def config(urls: Sequence[str], in_flight: int) -> RunConfig:
    flags = {
        "engine.name": "vllm",
        "engine.model": str(FOLDER),
        "engine.base_url": ",".join(urls),
        "strategy.options.n": 8,
        "prompts": NUM_TREES,
        "max_trees": max(1, in_flight // 8),
        "growth.max_response_tokens": 1024,
    }
    return resolve(preset="chains", flags=flags).config


def saturation(rounds: int) -> None:
    head = f"{'in flight':>9} {'turns/s':>8} {'CPU us a turn':>14} {'turns a core-s':>15} {'GPUs at 200':>12}"
    print(f"{head} {'at 1,000':>9} {'bare CPU us':>12} {'times':>6}")
    asked = requests(few(2000, 16, book=1000))
    with (
        instant_servers(call_or_answer, NUM_SERVERS) as urls,
        instant_servers(same_tokens) as (alone,),
        tempfile.TemporaryDirectory() as out,
    ):
        for in_flight in IN_FLIGHT:
            found: list[tuple[float, float, float]] = []
            for number in range(rounds):
                wall, cpu = time.perf_counter(), time.process_time()
                turns = folder.begin(config(urls, in_flight), Path(out) / f"{in_flight}-{number}").turns
                wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
                beside = loop.run(bare(alone, min(in_flight, 64), asked))[1]
                found.append((turns / wall, 1e6 * cpu / turns, 1e3 * beside))
            speed, cost, other = (statistics.median(each[part] for each in found) for part in range(3))
            times = statistics.median(each[1] / each[2] for each in found)
            a_core = 1e6 / cost
            gpus = [a_core * tokens / GPU_TOKENS_S for tokens in (200, 1000)]
            print(
                f"{in_flight:9} {speed:8.0f} {cost:14.0f} {a_core:15.0f} {gpus[0]:12.0f} {gpus[1]:9.0f} {other:12.0f}"
                f" {times:6.1f}",
                flush=True,
            )


# -- a day ------------------------------------------------------------------------------------------------------------

LOAD = Workload(500, range(2, 7), [*map(round, between(30, 300))], [*map(round, between(100, 400))], between(0.5, 20))


async def lived(hours: float) -> None:
    """Grow trees without end, until the day is over; a line for each eighth of it."""
    clock = asyncio.get_running_loop().time
    engine = Replicas([Simulated(Speaker(LOAD), step_s=0.05) for _ in range(8)])
    settings = resolve(preset="tree_grpo", flags={"engine.name": "simulated", "max_trees": 48, "prompts": 1}).config
    problems = [Problem(f"{i}", f"{i}".ljust(500, "?")) for i in range(few(200_000, 2_000))]
    run = Run(prepared_run(settings, problems, engine=engine, task=stand_in_task(LOAD, ())))
    marks = [hours * 3600 * (part + 1) / 8 for part in range(8)]
    cpu, num_nodes, num_trees, nodes_then = time.process_time(), 0, 0, 0

    def look(event: Event) -> None:
        nonlocal cpu, num_nodes, num_trees, nodes_then
        if not isinstance(event, TreeClosed):
            return
        num_nodes += len(event.tree)
        num_trees += 1
        if marks and clock() >= marks[0]:
            now = time.process_time()
            a_node, megabytes = 1e6 * (now - cpu) / max(1, num_nodes - nodes_then), resident_bytes() / 1e6
            hour = marks.pop(0) / 3600
            print(f"{hour:5.1f} h {num_trees:9} {num_nodes:10} {a_node:14.0f} {megabytes:12.1f}", flush=True)
            cpu, nodes_then = now, num_nodes
            if not marks:
                growing.cancel()

    growing = asyncio.ensure_future(run.grow([look]))
    await asyncio.wait([growing])
    await run.close_others()
    await engine.close()


def day(hours: float) -> None:
    print(f"{'':>7} {'trees':>9} {'nodes':>10} {'CPU us a node':>14} {'resident MB':>12}")
    run_virtual(lived(hours))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", action="append", choices=("saturation", "day"))
    parser.add_argument("--rounds", type=int, default=few(5, 1))
    parser.add_argument("--hours", type=float, default=few(24.0, 0.02))
    arguments = parser.parse_args()
    parts = arguments.part or ("saturation", "day")
    if "saturation" in parts:
        saturation(arguments.rounds)
    if "day" in parts:
        day(arguments.hours)


if __name__ == "__main__":
    main()
