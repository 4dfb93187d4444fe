"""What running ahead of the trainer is worth: trained tokens a second, with staleness 0, 1 and 4, plain and long-tail.

A simulated server (`ramify.testing.simulated_server.SimulatedCosts`: a 7 B model on one card, 256 sequences at once)
grows groups of eight chains whose lengths are lognormal, median 120 tokens, cut at 1,024; a trainer takes a batch of 32
groups, trains on it for a while, and loads weights behind every batch or behind every fourth. All in virtual time, so
that the figures are exact and the same on every machine.

Columns: trained tokens a virtual second; their share of the work bound, which is what could be trained if the server's
every step were full and it never waited for the trainer, nor the trainer for it; how many updates a trained token lies
behind, mean and most; tokens of groups that were dropped and of turns that were thrown away, per trained token.

`--engines` does the same on two real vLLM replicas of the built-in model in real time (RAMIFY_ENGINES_PYTHON names
their interpreter), with the task countdown; there the work bound is not known and the ratio is to staleness 0.

Run: python bench/staleness.py [--engines] [--batches 12]
"""

import argparse
import asyncio
import math
import statistics
import sys
from collections import Counter
from dataclasses import dataclass

import numpy as np
from real_replicas import Served, served
from smoke import few

from ramify.config.configure import resolve
from ramify.config.run_config import RunConfig
from ramify.core.engine import Engine
from ramify.runner.events import Event, StepGrown
from ramify.service.controller import Batch
from ramify.service.manager import RolloutManager
from ramify.testing.clock import run_virtual
from ramify.testing.scripts import ScriptedTurn
from ramify.testing.simulated import Simulated

MEDIAN, SIGMA, MAX_TOKENS = 120, 0.8, 1024
MODES = [(staleness, over) for staleness in few((0, 1, 4), (0, 1)) for over in (0, few(16, 2))]
UPDATES = (1, 4)
TRAIN_S = 12.0
"""Virtual seconds that the trainer trains on a batch: about as long as the server takes to sample one."""


@dataclass(frozen=True)
class Outcome:
    """Of one mode."""

    trained: int
    seconds: float
    lags: list[int]
    wasted: int
    """Tokens of dropped groups and of turns thrown away."""


def saying(turn: ScriptedTurn) -> str:
    """Words without an end, as many as the seed says, and an answer."""
    length = int(MEDIAN * math.exp(SIGMA * np.random.default_rng(turn.seed).normal()))
    return "a" * min(length, MAX_TOKENS - 20) + f"<answer>{turn.seed % 7}</answer>"


def simulated(staleness: int, over: int) -> RunConfig:
    flags = {
        "engine.name": "simulated",
        "prompts": few(4096, 64),
        "max_trees": few(1024, 16),
        "growth.max_response_tokens": MAX_TOKENS,
        "strategy.options.n": 8,
        "service.batch_size": few(32, 2),
        "service.max_staleness": staleness,
        "service.over_sampling": over,
        "service.on_stale": "keep" if staleness == 0 else "drop",
    }
    return resolve(preset="chains", flags=flags).config


async def trained(
    config: RunConfig, engine: Engine | None, *, num_batches: int, every: int, train_s: float, source: str
) -> Outcome:
    """Train `num_batches` batches."""
    sampled: Counter[int] = Counter()

    def count(event: Event) -> None:
        if isinstance(event, StepGrown):
            sampled[event.index] += sum(len(s) for s in event.step.segments if s.is_sampled)

    clock = asyncio.get_running_loop().time
    manager = await RolloutManager(config, None, engine=engine, observers=[count]).start()
    try:
        await manager.update_weights(0, source)  # Servers still have those of the mode before.
        num, lags, began, used = 0, [], clock(), set[int | None]()
        for rollout_id in range(num_batches):
            batch = await manager.generate(rollout_id)
            num += num_trained(batch)
            used |= {sample.group_index for sample in batch.samples}
            lags += [manager.version - int(v) for sample in batch.samples for v in sample.weight_versions]
            await asyncio.sleep(train_s)
            if rollout_id % every == every - 1:
                await manager.update_weights(manager.version + 1, source)
        dropped = sum(num for index, num in sampled.items() if index not in used | manager.live)
        return Outcome(num, clock() - began, lags, dropped + manager.gate.num_wasted)
    finally:
        await manager.close()


def num_trained(batch: Batch) -> int:
    return sum(sum(sample.mask()) for sample in batch.samples)


def row(mode: tuple[int, int], every: int, outcome: Outcome, bound: float) -> str:
    staleness, over = mode
    rate = outcome.trained / outcome.seconds
    extra = outcome.wasted / outcome.trained
    name = "long-tail" if over else "plain"
    return (
        f"| {staleness} | {name} | {every} | {rate:,.0f} | {rate / bound:.0%} | {statistics.mean(outcome.lags):.2f} | "
        f"{max(outcome.lags)} | {extra:.1%} |"
    )


def print_header(ratio: str) -> None:
    print(f"| staleness | mode | update every | trained tokens/s | {ratio} | updates behind, mean | most | wasted |")
    print("|---|---|---|---|---|---|---|---|")


def in_virtual_time(num_batches: int) -> None:
    print_header("of the work bound")
    for every in UPDATES:
        for mode in MODES:
            engine = Simulated(saying, version=0)
            training = trained(
                simulated(*mode), engine, num_batches=num_batches, every=every, train_s=TRAIN_S, source="w"
            )
            outcome = run_virtual(training)
            least_s = engine.least_s * outcome.trained / engine.stats.num_decoded
            bound = outcome.trained / max(least_s, num_batches * TRAIN_S)
            print(row(mode, every, outcome, bound), flush=True)


def on_real_engines(num_batches: int) -> None:
    """On two vLLM replicas: a batch is 16 groups of the task countdown, the trainer trains for as long as a batch takes
    to sample, and what is loaded are the same weights again under a new version."""
    print_header("of staleness 0")
    with served() as servers:
        config, source = real(servers, 0, 0), str(servers.model)
        _, warm = (asyncio.run(trained(config, None, num_batches=3, every=9, train_s=0.0, source=source)) for _ in "ab")
        train_s = warm.seconds / 3
        print(f"a batch takes {train_s:.1f} s", file=sys.stderr, flush=True)
        for every in UPDATES:
            rates: dict[tuple[int, int], float] = {}
            for mode in MODES:
                config = real(servers, *mode)
                outcome = asyncio.run(
                    trained(config, None, num_batches=num_batches, every=every, train_s=train_s, source=source)
                )
                rates[mode] = outcome.trained / outcome.seconds
                print(row(mode, every, outcome, rates[MODES[0]]), flush=True)


def real(servers: Served, staleness: int, over: int) -> RunConfig:
    flags = {
        "task.split": "train",
        "prompts": 256,
        "max_trees": 1024,
        "strategy.options.n": 8,
        "service.batch_size": 16,
        "service.max_staleness": staleness,
        "service.over_sampling": over // 2,
        "service.on_stale": "keep" if staleness == 0 else "drop",
    }
    return resolve(preset="chains", flags=servers.flags(**flags), is_small=True).config


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=few(16, 2))
    parser.add_argument("--engines", action="store_true", help="on two real vLLM replicas")
    options = parser.parse_args()
    if options.engines:
        on_real_engines(options.batches)
    else:
        in_virtual_time(options.batches)


if __name__ == "__main__":
    main()
