"""Cost of a node: ask + tell + apply + ledger of three strategies, and the memory of a finished tree.

One tree of 1,000 and of 10,000 nodes, grown by the driver from steps made beforehand: no engine, no asyncio, no delay.
Targets: at most 60 microseconds a node, flat; at most 400 bytes a node beside ids and logprobs.
"""

import gc
import statistics
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from smoke import few

from ramify.core.codec import ByteCodec
from ramify.core.command import Grow, Score
from ramify.core.growth import Done
from ramify.core.ledger import Spend
from ramify.core.limits import Limits
from ramify.core.problem import Problem
from ramify.core.segment import Finish, Origination, Segment, ToolCall, Usage
from ramify.core.strategy import Strategy
from ramify.core.tree import Step, Tree
from ramify.runner.driver import Driver, Start
from ramify.strategies.chains import Chains, ChainsConfig
from ramify.strategies.offline import Offline, OfflineConfig
from ramify.strategies.online import Online, OnlineConfig

CODEC = ByteCodec(is_exact=True)
RUNS = few(5, 1)
TOKENS = 16
CHAIN = 4
"""Steps of a chain."""

IDS = np.arange(65, 65 + TOKENS, dtype=np.int32)
LOGPROBS = np.full(TOKENS, -0.5, np.float32)
SOURCE = Origination("bench", logprobs="raw")
ACTION = Segment(
    "sampled",
    IDS,
    logprobs=LOGPROBS,
    source=SOURCE,
    finish=Finish("stop", "</calc>"),
    seed=1,
    usage=Usage(1, TOKENS, 9, 9),
)
RESULT = Segment("given", IDS, tool_call=ToolCall("calculator", "1+1", result="2 : 2"))
MEASURES = {"step_entropy_topk": 0.5}
CALL = Step((ACTION, RESULT), measures=MEASURES)
LEAF = Step((ACTION,), stop="answer", measures=MEASURES, scores=(Score("judge", 1.0),))


def short_step(level: int) -> Step:
    return CALL if level < CHAIN - 1 else LEAF


def grow(driver: Driver, start: Start, step: Callable[[int], Step], num_steps: int) -> None:
    """What a grower would report, at once: the rest of a chain of `num_steps` steps, or one step of it."""
    assert isinstance(start.command, Grow) and start.place is not None
    levels = range(driver.tree.depth(start.place.parent), num_steps)
    for level in levels[: 1 if start.command.until == "step" else None]:
        driver.grew(start.command_id, step(level))
    driver.ended(start.command_id, Done())


def grown(strategy: Strategy, step: Callable[[int], Step] = short_step, num_steps: int = CHAIN) -> Tree:
    """A tree of chains whose step at each level, counted from 0, is `step(level)`."""
    prompt = Segment("prompt", IDS)
    driver = Driver(
        Tree(Problem("p", "q"), CODEC, [prompt], seed=1),
        strategy,
        limits=Limits(decode=10**9),
        need=lambda tree, command, place: Spend(leaves=1, decode=TOKENS * CHAIN),
    )
    while not driver.is_finished:
        for start in driver.pump().starts:
            grow(driver, start, step, num_steps)
    driver.tree.trim()
    return driver.tree


def strategies(num_nodes: int) -> dict[str, Callable[[], Strategy]]:
    """Each grows about `num_nodes` nodes."""
    rng = np.random.default_rng
    rounds, per_round = 4, max(1, num_nodes // 16)
    return {
        "chains": lambda: Chains(ChainsConfig(n=num_nodes // CHAIN), rng(0)),
        "offline": lambda: Offline(
            OfflineConfig(
                initial_rollouts=num_nodes // 8, n=num_nodes, expansion_iterations=rounds, expansion_nodes=per_round
            ),
            rng(0),
        ),
        "online": lambda: Online(
            OnlineConfig(n=num_nodes // 3, initial_rollouts=num_nodes // 6, rounds="free"), rng(0)
        ),
    }


def microseconds_a_node(build: Callable[[], Strategy]) -> tuple[float, int]:
    times = []
    for _ in range(RUNS):
        strategy = build()
        began = time.process_time()
        tree = grown(strategy)
        times.append((time.process_time() - began) / len(tree) * 1e6)
    return statistics.median(times), len(tree)


def bytes_a_node(build: Callable[[], Strategy]) -> float:
    strategy = build()
    gc.collect()
    tracemalloc.start()
    tree = grown(strategy)
    strategy = replace(ChainsConfig())  # the strategy's own memory is not the tree's
    gc.collect()
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    tokens = sum(len(s) for n in range(len(tree)) for s in tree.segments(n))
    return (used - tokens * (IDS.itemsize + LOGPROBS.itemsize)) / len(tree)


def main() -> None:
    print(f"{'strategy':10} {'nodes':>7} {'us/node':>9} {'bytes/node':>11}")
    for num_nodes in few((1_000, 10_000), (100,)):
        for name, build in strategies(num_nodes).items():
            us, count = microseconds_a_node(build)
            print(f"{name:10} {count:7} {us:9.1f} {bytes_a_node(build):11.0f}")


if __name__ == "__main__":
    main()
