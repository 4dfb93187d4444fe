"""Cost of a search by itself: microseconds of ask + tell a node of the tree, at 1,000 and 10,000 nodes.

One tree grown by the driver from steps made beforehand, judged by a number that follows from the node; only the calls
of the strategy are timed, but for rows of a whole loop. With 16 in flight the one asked for last comes back first.
Target: at most 20 microseconds, flat in the number of nodes: `grows` is the power of the number of nodes with which the
time a node grows, 0 = flat. `--strategy` picks rows, `--peer PYTHON` runs the peers in an interpreter in which
`treequest` and `its_hub` are installed.

Peers are timed doing the same work from the same numbers: `treequest` in its fastest mode (ask, tell, state kept in
place; its `step` copies the tree), `its_hub` (whole loops), and ports of published loops
(`bench/published_searches.py`).
"""

import argparse
import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from smoke import few

from ramify.core.codec import ByteCodec
from ramify.core.command import Command, Grow, Judge, Outcome, Score
from ramify.core.growth import Done, GrowthRules, Scored
from ramify.core.problem import Problem
from ramify.core.segment import Segment, Usage
from ramify.core.strategy import Phase, Strategy
from ramify.core.tree import Step, Tree
from ramify.runner.driver import Driver, Start
from ramify.strategies.ab_mcts.a import ABMCTS, ABMCTSConfig
from ramify.strategies.beam import Beam, BeamConfig
from ramify.strategies.best_first import BestFirst, BestFirstConfig
from ramify.strategies.lats import LATS, LATSConfig
from ramify.strategies.mcts.config import TREEQUEST, MCTSConfig
from ramify.strategies.mcts.priors import Prior
from ramify.strategies.mcts.search import MCTS
from ramify.strategies.mctsr.config import MCTSrConfig, Selection
from ramify.strategies.mctsr.search import MCTSr
from ramify.strategies.particle_filter import ParticleFilter, ParticleFilterConfig
from ramify.strategies.rap import RAP, RAPConfig
from ramify.strategies.rstar_mcts import AS_PUBLISHED as RSTAR_AS_PUBLISHED
from ramify.strategies.rstar_mcts import RStarMCTS, RStarMCTSConfig

RUNS = few(5, 1)
SIZES = few((1_000, 10_000), (20, 40), book=(1_000, 4_000))
IN_FLIGHT = (1, 16)
LEVEL = few(64, 4)
"""Steps of a level of beam search and of particle filtering, which are all in flight."""
IDS = np.arange(65, 65 + 16, dtype=np.int32)
LOGPROBS = np.full(16, -0.5, np.float32)
NUMBERS = np.random.default_rng(1).random(1 << 16).tolist()
"""Values of nodes."""
STEPS = [
    Step((Segment("sampled", np.roll(IDS, i % 16)[: 4 + i % 13], logprobs=LOGPROBS[: 4 + i % 13], usage=Usage(1, 16)),))
    for i in range(208)
]
"""Steps of several lengths and texts."""
LEAVES = [replace(step, stop="answer") for step in STEPS]
ANSWER_DEPTH = 12
"""A path may end from here on; one in three does."""
MCTSR_SCALE = MCTSrConfig().scale


@dataclass(frozen=True)
class Row:
    """One line of the table: how to build a strategy that grows so many nodes, and which peer does the same work."""

    build: Callable[[int, int], Strategy]
    """(nodes, in flight) -> strategy."""
    peer: str = ""
    quotes: bool = False
    """Whether its actions begin fresh contexts, so that answers are grown from."""
    scale: float = 1.0
    """The judge's values are below it. On a scale that is too large, a search of answers grows one long chain."""
    is_whole: bool = False
    """Whether driver and tree are timed with the strategy, as the peer is; then no path ends before the last level."""


def mcts(num_nodes: int, in_flight: int) -> Strategy:
    return MCTS(MCTSConfig(n=num_nodes, in_flight=in_flight), np.random.default_rng(0))


def mcts_numbers_only(num_nodes: int, in_flight: int) -> Strategy:
    """Nothing is read of the tokens: no priors of logprobs, no twins."""
    config = MCTSConfig(n=num_nodes, in_flight=in_flight, prior=Prior(evidence="uniform"), duplicates="keep")
    return MCTS(config, np.random.default_rng(0))


def treequest(num_nodes: int, in_flight: int) -> Strategy:
    return MCTS(replace(TREEQUEST, n=num_nodes, in_flight=in_flight), np.random.default_rng(0))


def rstar(config: RStarMCTSConfig) -> Callable[[int, int], Strategy]:
    def build(num_nodes: int, in_flight: int) -> Strategy:
        return RStarMCTS(
            replace(config, width=8, iterations=10 * num_nodes, in_flight=in_flight), np.random.default_rng(0)
        )

    return build


def ab_mcts(num_nodes: int, in_flight: int) -> Strategy:
    return ABMCTS(ABMCTSConfig(num_answers=num_nodes, max_in_flight=in_flight), np.random.default_rng(0))


def mctsr(selection: Selection) -> Callable[[int, int], Strategy]:
    def build(num_nodes: int, in_flight: int) -> Strategy:
        config = MCTSrConfig(max_rollouts=num_nodes, in_flight=in_flight, selection=selection)
        return MCTSr(config, np.random.default_rng(0))

    return build


def rap(num_nodes: int, in_flight: int) -> Strategy:
    """One iteration at a time, whatever is in flight."""
    return RAP(RAPConfig(iterations=num_nodes, depth_limit=10), np.random.default_rng(0))


def lats(num_nodes: int, in_flight: int) -> Strategy:
    """One iteration at a time, whatever is in flight."""
    return LATS(LATSConfig(iterations=num_nodes, depth_limit=10), np.random.default_rng(0))


def beam(num_nodes: int, in_flight: int) -> Strategy:
    width = math.isqrt(LEVEL)
    config = BeamConfig(width=width, samples=LEVEL // width, max_depth=num_nodes // LEVEL, last_level="step")
    return Beam(config, np.random.default_rng(0))


def particle_filter(num_nodes: int, in_flight: int) -> Strategy:
    config = ParticleFilterConfig(n=LEVEL, max_depth=num_nodes // LEVEL)
    return ParticleFilter(config, np.random.default_rng(0))


def best_first(num_nodes: int, in_flight: int) -> Strategy:
    return BestFirst(BestFirstConfig(num_answers=num_nodes, pops=in_flight), np.random.default_rng(0))


ROWS: Mapping[str, Row] = {
    "ab_mcts": Row(ab_mcts, peer="treequest AB-MCTS-A", quotes=True),
    "beam (whole loop)": Row(beam, peer="its_hub beam", is_whole=True),
    "best_first": Row(best_first, quotes=True),
    "lats": Row(lats),
    "mcts": Row(mcts),
    "mcts (numbers only)": Row(mcts_numbers_only),
    "mcts (treequest)": Row(treequest, peer="treequest StandardMCTS", quotes=True),
    "mctsr": Row(mctsr("importance"), quotes=True, scale=MCTSR_SCALE),
    "mctsr (greedy)": Row(mctsr("greedy"), quotes=True, scale=MCTSR_SCALE),
    "mctsr (pairwise)": Row(mctsr("pairwise"), quotes=True, scale=MCTSR_SCALE),
    "particle_filter (whole loop)": Row(particle_filter, peer="its_hub particle filtering", is_whole=True),
    "rap": Row(rap),
    "rstar_mcts": Row(rstar(RStarMCTSConfig())),
    "rstar_mcts (as published)": Row(rstar(RSTAR_AS_PUBLISHED), peer="rStar MCTS"),
}


def clock_cost() -> float:
    """Seconds that reading the clock adds to what is timed."""
    costs: list[float] = []
    for _ in range(200):
        began = time.perf_counter()
        costs.append(time.perf_counter() - began)
    return sorted(costs)[len(costs) // 2]


class Timed:
    """A strategy whose calls are timed, by a clock that costs little: that of CPU time costs more than a call."""

    def __init__(self, strategy: Strategy, max_nodes: int) -> None:
        self.strategy = strategy
        self.measures, self.is_order_free = strategy.measures, strategy.is_order_free
        self.post_hoc_reason = strategy.post_hoc_reason
        self.seconds = 0.0
        self.clock_cost = clock_cost()
        self.max_nodes = max_nodes

    def ask(self, tree: Tree) -> Sequence[Command]:
        began = time.perf_counter()
        commands = self.strategy.ask(tree)
        self.seconds += time.perf_counter() - began - self.clock_cost
        return commands

    def tell(self, tree: Tree, outcome: Outcome) -> None:
        began = time.perf_counter()
        self.strategy.tell(tree, outcome)
        self.seconds += time.perf_counter() - began - self.clock_cost

    def is_done(self, tree: Tree) -> bool:
        return len(tree) > self.max_nodes or self.strategy.is_done(tree)

    def phase(self, tree: Tree) -> Phase:
        return self.strategy.phase(tree)


def carry_out(driver: Driver, start: Start, *, ends: bool, scale: float) -> None:
    """What a grower or a judge would report, at once."""
    match start.command:
        case Grow(until=until):
            assert start.place is not None
            seed = start.place.seed
            is_end = until == "end" or (
                ends and seed % 3 == 0 and driver.tree.depth(start.place.parent) >= ANSWER_DEPTH
            )
            driver.grew(start.command_id, (LEAVES if is_end else STEPS)[seed % len(STEPS)])
            driver.ended(start.command_id, Done())
        case Judge(nodes, judge):
            driver.ended(
                start.command_id, Scored(tuple(Score(judge, scale * NUMBERS[n % len(NUMBERS)]) for n in nodes))
            )


def microseconds(row: Row, num_nodes: int, in_flight: int) -> tuple[float, int]:
    """Of the strategy's calls or of the whole loop, a node of the tree: the median of the runs; and how many nodes."""
    found: list[float] = []
    count = 0
    for _ in range(RUNS):
        timed = Timed(row.build(num_nodes, in_flight), num_nodes)
        tree = Tree(Problem("p", "q"), ByteCodec(is_exact=True), [Segment("prompt", IDS)], seed=1)
        quoting = frozenset({"policy", "critique", "refine", "rewrite"}) if row.quotes else frozenset[str]()
        driver = Driver(tree, timed, delivery="eager", rules=GrowthRules(quoting=quoting))
        waiting: list[Start] = []
        began = time.perf_counter()
        while not driver.is_finished:
            waiting += driver.pump().starts
            if waiting:
                carry_out(driver, waiting.pop(), ends=not (row.quotes or row.is_whole), scale=row.scale)
            elif len(tree) > num_nodes:
                break
        seconds = time.perf_counter() - began if row.is_whole else timed.seconds
        found.append(seconds / len(tree) * 1e6)
        count = len(tree)
    return statistics.median(found), count


def exponent(found: Sequence[tuple[float, int]]) -> float:
    """The power of the number of nodes with which the time a node grows: a line through the logarithms."""
    times, counts = np.log(np.array(found, np.float64)).T
    return float(np.polyfit(counts, times, 1)[0])


def peers(python: str) -> dict[str, Any]:
    """What the peers take in the other interpreter: name -> {"nodes/in flight": microseconds}."""
    script = Path(__file__).with_name("published_searches.py")
    done = subprocess.run([python, str(script)], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--strategy", action="append", choices=sorted(ROWS))
    parser.add_argument("--peer", default=sys.executable, help="interpreter in which the peers run")
    arguments = parser.parse_args()
    published = peers(arguments.peer)
    print(f"{'strategy':28} {'nodes':>7} {'in flight':>9} {'us/node':>9} {'peer us':>9} {'ratio':>7} {'grows':>6}")
    for name in arguments.strategy or ROWS:
        for in_flight in (LEVEL,) if ROWS[name].is_whole else IN_FLIGHT:
            found: list[tuple[float, int]] = []
            for num_nodes in SIZES:
                us, count = microseconds(ROWS[name], num_nodes, in_flight)
                found.append((us, count))
                peer = published.get(ROWS[name].peer, {}).get(f"{num_nodes}/{in_flight}")
                beside = f"{peer:9.1f} {peer / us:7.1f}" if peer else f"{'-':>9} {'-':>7}"
                grows = f" {exponent(found):6.2f}" if len(found) == len(SIZES) else ""
                print(f"{name:28} {count:7} {in_flight:9} {us:9.1f} {beside}{grows}", flush=True)


if __name__ == "__main__":
    main()
