"""Placement over replicas: what of a tree's shared prefixes is computed once, what that is worth, what deciding costs.

Eight modelled servers (`testing/simulated_server.py`, in virtual time; times are exact) grow the same trees under four
rules:

- round_robin: one replica after the other;
- cache_aware: the rule of sgl-project/sglang's router at its defaults (cache_threshold 0.3, balance_abs_threshold 64,
  balance_rel_threshold 1.5): the replica with the longest match if that is more than 0.3 of the context, else the least
  loaded; the least loaded for everybody while the loads are out of balance. It sees requests and no answers;
- prefix: this project's (`engines/fleet/placement.py`);
- known lengths: the same, if it knew how long each turn will be: the load of a replica is the tokens of its requests in
  place of their number. It says what forecasts of lengths could come to.

`blocks held`: of the context tokens in whole blocks of 16 that any request had computed before, anywhere, the share
that was cached where the request went. `twice`: the others, computed again. `spills`: requests whose best replica was
full. Contexts begin with a preamble of 1,200 tokens that all trees share, which each server computes for itself; tools
take 0.05 to 2 s.

The first part is the time of one decision, on this machine: 64 replicas, 1,000 open branches of 125 trees, median over
requests in random order. Target: at most 20 microseconds for a context of 2,048 tokens, its answer included.

Run: python bench/placement.py [--spare N …: also the rule with other spares]
"""

import random
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from against_lockstep import LONG, QUICK, SHORT, Agent, Searching, Slow, passage
from smoke import few

from ramify.config.run_config import GrowthConfig, RunConfig, StrategyConfig, ToolsConfig
from ramify.core.codec import Codec
from ramify.core.engine import Capabilities, Generation, Request
from ramify.core.problem import Problem
from ramify.core.segment import Ids_T
from ramify.engines.fleet.placement import MAX_IN_FLIGHT, SPARE, Load, Placement, PrefixPlacement, RoundRobin, Seat
from ramify.engines.fleet.replicas import Replicas
from ramify.runner.library import rollout
from ramify.testing.clock import run_virtual
from ramify.testing.prefixes import KnownPrefixes
from ramify.testing.simulated import BLOCK_SIZE, Simulated
from ramify.tools.function import FunctionTool

NUM_REPLICAS = 8
PREAMBLE = "Search, then think; think, then answer. " * 30
WORDS = ("alder", "birch", "cedar", "elm", "fir", "hazel", "larch", "maple", "oak", "pine", "rowan", "willow")


# -- rules ------------------------------------------------------------------------------------------------------------


class CacheAware:
    """The rule of sglang's router (sgl-model-gateway, policies/cache_aware.rs)."""

    def __init__(self, num_replicas: int) -> None:
        self._held = [KnownPrefixes(BLOCK_SIZE) for _ in range(num_replicas)]
        self._rng = random.Random(0)

    def seat(self, ids: Ids_T, tree: int, load: Load) -> Seat | None:
        loads = load.in_flight
        known = [held.num_known(ids) for held in self._held]
        replica = max(load.takers, key=lambda i: known[i])
        is_unbalanced = max(loads) - min(loads) > 64 and max(loads) > 1.5 * min(loads)
        if is_unbalanced or known[replica] <= 0.3 * len(ids):
            replica = min(load.takers, key=lambda i: (loads[i], self._rng.random()))
        self._held[replica].add(ids)
        return Seat(replica, is_spill=known[replica] < max(known))

    def computed(self, seat: Seat, ids: Ids_T) -> None: ...

    def forget(self, replica: int) -> None: ...


class Tokens(Load):
    """Tokens that requests in flight have come to when they end, in hundredths of a mean turn."""

    def __init__(self, num_replicas: int) -> None:
        super().__init__(num_replicas, max_in_flight=100 * MAX_IN_FLIGHT, spare=100 * SPARE)

    def add(self, replica: int, number: int) -> None:
        self.in_flight[replica] += number
        self._num_taken += number


class KnownLengths(PrefixPlacement):
    """`prefix` with loads of tokens, which it is told in front of each request."""

    def __init__(self, num_replicas: int) -> None:
        super().__init__(num_replicas)
        self.load = Tokens(num_replicas)
        self.told = 0
        """Tokens of the next request, in hundredths of a mean turn."""
        self._numbers: dict[int, int] = {}

    def seat(self, ids: Ids_T, tree: int, load: Load) -> Seat | None:
        seat = super().seat(ids, tree, self.load)
        assert seat is not None
        self._numbers[id(seat)] = self.told
        self.load.add(seat.replica, self.told)
        return seat

    def computed(self, seat: Seat, ids: Ids_T) -> None:
        super().computed(seat, ids)
        self.load.add(seat.replica, -self._numbers.pop(id(seat)))


RULES = {
    "round_robin": lambda n: RoundRobin(),
    "cache_aware": CacheAware,
    "prefix": PrefixPlacement,
    "known lengths": KnownLengths,
}
Lengths = dict[tuple[int, int], int]
"""Seed and context of a request -> the tokens that it came to. They are the same under every rule."""


class Watched:
    """Replicas, and what one cache of boundless size would have held. Notes the length of each turn, and tells it to a
    rule that wants to know."""

    def __init__(self, replicas: Replicas, rule: Placement, lengths: Lengths) -> None:
        self._replicas, self._rule, self._lengths = replicas, rule, lengths
        self._mean = statistics.fmean(lengths.values() or [1])
        self._computed = KnownPrefixes(BLOCK_SIZE, max_blocks=1 << 40)
        self.num_forkable = 0
        self.num_held = 0

    @property
    def codec(self) -> Codec:
        return self._replicas.codec

    @property
    def capabilities(self) -> Capabilities:
        return self._replicas.capabilities

    async def generate(self, request: Request) -> Generation:
        forkable = self._computed.num_known(request.ids)
        self._computed.add(request.ids)
        key = request.seed, len(request.ids)
        if isinstance(self._rule, KnownLengths):
            self._rule.told = round(100 * self._lengths[key] / self._mean)
        generation = await self._replicas.generate(request)
        self._lengths[key] = len(generation.ids)
        self._computed.add(np.concatenate([request.ids, generation.ids[:-1]]))
        self.num_forkable += forkable
        self.num_held += min(forkable, generation.num_cached)
        return generation

    async def close(self) -> None:
        await self._replicas.close()


# -- the work ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Work:
    """Trees to grow."""

    title: str
    num_trees: int
    strategy: str = "offline"
    options: tuple[tuple[str, Any], ...] = ()
    num_thoughts: tuple[int, int] = SHORT
    num_words: int = 80
    """Of a question; six tokens each."""
    num_replicas: int = NUM_REPLICAS

    @property
    def problems(self) -> list[Problem]:
        rng = random.Random(self.num_trees)
        notes = [" ".join(rng.choices(WORDS, k=self.num_words)) for _ in range(self.num_trees)]
        return [Problem(f"{i}", f"{PREAMBLE}{note}: who is number {i}?") for i, note in enumerate(notes)]

    @property
    def config(self) -> RunConfig:
        return RunConfig(
            strategy=StrategyConfig(name=self.strategy, options=dict(self.options)),
            growth=GrowthConfig(max_response_tokens=8192),
            tools=ToolsConfig(max_parallel=100_000),
            delivery="eager",
            max_trees=self.num_trees,
        )


WORKS = (
    Work("256 trees, offline", 256),
    Work("96 trees, offline, long", 96, num_thoughts=LONG, num_words=300),
    Work("32 trees, ARPO", 32, "online"),
    Work("4 trees of 128 chains", 4, "chains", (("n", 128),)),
)


@dataclass(frozen=True)
class Grown:
    """What one rule came to."""

    wall_s: float
    num_decoded: int
    num_forkable: int
    num_held: int
    num_spills: int


async def grown(work: Work, rule: Placement, lengths: Lengths, *, spare: int | None = None) -> Grown:
    engines = [Simulated(Agent(work.num_thoughts)) for _ in range(work.num_replicas)]
    replicas = Replicas(engines, placement=rule) if spare is None else Replicas(engines, placement=rule, spare=spare)
    watched = Watched(replicas, rule, lengths)
    task: Any = Searching((Slow(FunctionTool(passage, name="search"), QUICK),))
    report = (await rollout(work.problems, config=work.config, engine=watched, task=task)).report
    await watched.close()
    return Grown(
        report.seconds,
        report.decode_tokens,
        watched.num_forkable,
        watched.num_held,
        sum(stats.num_spills for stats in replicas.stats),
    )


def show(title: str, name: str, one: Grown, first: Grown) -> None:
    assert one.num_decoded == first.num_decoded, "the trees differ"
    print(
        f"{title:28}{name:14}{one.num_decoded:9}{one.num_held / one.num_forkable:13.1%}"
        f"{one.num_forkable - one.num_held:11}{one.num_spills:8}{one.wall_s:9.2f}"
        f"{first.wall_s / one.wall_s:8.2f}x",
        flush=True,
    )


def show_work(work: Work, spares: Sequence[int]) -> None:
    first, lengths = None, Lengths()
    for name, rule in RULES.items():
        one = run_virtual(grown(work, rule(work.num_replicas), lengths))
        first = first or one
        show(work.title if one is first else "", name, one, first)
    assert first is not None
    for spare in spares if work.strategy != "offline" else ():
        one = run_virtual(grown(work, PrefixPlacement(work.num_replicas), lengths, spare=spare))
        show("", f"  spare {spare}", one, first)


# -- the time of a decision -------------------------------------------------------------------------------------------


def decision_us(length: int, *, num_replicas: int = 64, num_trees: int = 125, num_branches: int = 8) -> list[float]:
    """Median microseconds of a tree's first request, of a later one, and of hearing its answer."""
    rng = np.random.default_rng(0)

    def drawn(number: int) -> Ids_T:
        return rng.integers(0, 150_000, number).astype(np.int32)

    preamble = drawn(length // 4)
    questions = [np.concatenate([preamble, drawn(length // 4)]) for _ in range(num_trees)]
    branches = [
        (tree, np.concatenate([question, drawn(length - len(question))]))
        for tree, question in enumerate(questions)
        for _ in range(num_branches)
    ]
    rule, load = PrefixPlacement(num_replicas), Load(num_replicas)
    firsts, laters, answers = [], [], []
    for tree, ids in branches:
        began = time.perf_counter()
        seat = rule.seat(ids, tree, load)
        firsts.append(time.perf_counter() - began)
        assert seat is not None
        load.begin(seat.replica)
    for _ in range(5):
        random.Random(0).shuffle(branches)
        for index, (tree, ids) in enumerate(branches):
            longer = np.concatenate([ids, drawn(128)])
            began = time.perf_counter()
            seat = rule.seat(ids, tree, load)
            seated = time.perf_counter()
            assert seat is not None
            rule.computed(seat, longer)
            answers.append(time.perf_counter() - seated)
            laters.append(seated - began)
            branches[index] = (tree, ids)
    return [statistics.median(times) * 1e6 for times in (firsts, laters, answers)]


def show_decisions() -> None:
    print(f"{'one decision, 64 replicas':28}{'first us':>14}{'later us':>10}{'answer us':>11}{'later + answer':>16}")
    for length in (512, 2048, 8192):
        first, later, answer = decision_us(length)
        target = "  (target 20)" if length == 2048 else ""
        print(f"  {length:5} tokens{first:28.1f}{later:10.1f}{answer:11.1f}{later + answer:16.1f}{target}")
    print()


def main(spares: Sequence[int]) -> None:
    show_decisions()
    print(f"{'':28}{'rule':14}{'tokens':>9}{'blocks held':>13}{'twice':>11}{'spills':>8}{'wall s':>9}{'faster':>9}")
    for work in few(WORKS, (replace(WORKS[0], num_trees=8),), book=WORKS[:1]):
        show_work(work, spares)


if __name__ == "__main__":
    main([int(number) for number in sys.argv[2:]] if sys.argv[1:2] == ["--spare"] else [])
