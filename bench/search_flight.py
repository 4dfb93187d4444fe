"""What requests in flight save a search, and what they cost it: 16 at once beside one after the other.

- time: one tree, the scripted engine, a second of virtual time a call; judgements take none. Wall of `mcts` with one
  segment in flight over that with 16. Target: at least 8 times less.
- quality: the same search on held-out countdown problems with the built-in model and its judge of steps, as many
  segments; the share of right answers, paired by problem. Target: the interval of the difference holds 0.

Run: python bench/search_flight.py [--problems N] [--seeds N]
"""

import argparse
import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from smoke import few

from ramify.config.configure import resolve
from ramify.config.run_config import RunConfig
from ramify.core.branch import Branch
from ramify.core.judge import Verdict
from ramify.core.problem import Problem
from ramify.experiments.evaluation import evaluated
from ramify.experiments.paired import paired_difference
from ramify.runner import loop
from ramify.runner.build import build_task, prepared_run
from ramify.runner.run import Run
from ramify.testing.clock import run_virtual
from ramify.testing.planned_faults import Delay
from ramify.testing.policies import chains
from ramify.testing.scripted import Scripted

SEGMENTS = 128
FLIGHTS = (1, 16)
TARGET = 8.0


class Hashed:
    """A judge that takes no time: a number that follows from the branch."""

    name = "hashed"
    is_oracle = False

    async def judge(self, branches: Sequence[Branch], problem: Problem) -> Sequence[Verdict]:
        return [Verdict(hash(branch.ids.tobytes()) % 997 / 997) for branch in branches]


def config(in_flight: int, **more: Any) -> RunConfig:
    options = {"n": SEGMENTS, "in_flight": in_flight, "blocked": "widen"}
    flags: Mapping[str, Any] = {"strategy.name": "mcts", "strategy.options": options, **more}
    return resolve(flags=flags).config


async def walled(in_flight: int) -> float:
    """Virtual seconds of one tree."""
    kind = {"hashed": {"kind": f"{__file__}:Hashed"}}
    judged = {"judge": "hashed", "outcome": "hashed", "duplicates": "keep", "finish": "leave", "blocked": "widen"}
    options = {"n": SEGMENTS, "in_flight": in_flight, **judged}
    more = {"growth.max_response_tokens": 4096, "growth.max_tool_calls": 100, "strategy.options": options}
    engine = Scripted(chains(*range(20, 30)), delay=Delay(call_s=1.0))
    run = Run(
        prepared_run(config(in_flight, judges=kind, **more), [Problem("p", "make 24 from 4 6 8 2")], engine=engine)
    )
    try:
        began = asyncio.get_running_loop().time()
        await run.grow(())
        return asyncio.get_running_loop().time() - began
    finally:
        await run.close()


def right(in_flight: int, num_problems: int, num_seeds: int) -> list[float]:
    """Of each problem the share of seeds whose answer was right."""
    settings = config(in_flight, judges={"process": {"kind": "value"}}, prompts=num_problems)
    problems = build_task(settings).problems("heldout", num_problems, 0)
    seeds = [loop.run(evaluated(replace(settings, seed=seed), problems)) for seed in range(num_seeds)]
    return [fmean(seed[problem.uid].returned for seed in seeds) for problem in problems]


def main() -> None:
    parser = argparse.ArgumentParser(description="16 requests in flight beside one")
    parser.add_argument("--problems", type=int, default=few(100, 1))
    parser.add_argument("--seeds", type=int, default=few(3, 1))
    options = parser.parse_args()
    one, many = (run_virtual(walled(in_flight)) for in_flight in FLIGHTS)
    print(f"time: {one:.0f} s one by one, {many:.0f} s with {FLIGHTS[1]}: {one / many:.1f} times less; ", end="")
    print(f"target {TARGET:g}: {'met' if one / many >= TARGET else 'MISSED'}")
    alone, together = (right(in_flight, options.problems, options.seeds) for in_flight in FLIGHTS)
    found = paired_difference(together, alone)
    print(f"right: {fmean(alone):.3f} one by one, {fmean(together):.3f} with {FLIGHTS[1]}; ", end="")
    print(f"difference {found.value:+.3f} [{found.low:+.3f}, {found.high:+.3f}]: {found.word}")


if __name__ == "__main__":
    main()
