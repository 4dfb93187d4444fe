"""The runner against the published batch loop (`lockstep_reference.py`): the same trees, tokens and tools, other waits.

Offline trees (3 chains, two rounds of one fork), and in one part online ones (ARPO, 16 paths). Both sides grow the same
leaves and tokens, which is checked. The time of a tool's call is log-uniform and drawn from what is called, so both
sides wait for the same calls. At most 64 run at once, as published, but with slow tools as many as there are: else
nothing but the cap would be measured.

- simulated: a scripted agent of 1 to 6 searches a path on a modelled server, in virtual time; times are exact. Turns
  think for 10 to 100 tokens, long ones for 30 to 300. With quick tools the median of five sets of problems, by how much
  faster `ordered` is.
- builtin: the shipped model with its calculator, in real time, for the model's compute is real; means of two runs taken
  in turns. A busy machine slows the model and not the tools.

An order-free strategy is told eagerly whatever the delivery, unless a limit is set; so `ordered` sets one that does not
bind. `tree alone`: the longest time that any tree takes by itself on the same server, which is its chain of dependent
calls. `full steps`: what the server would take for the same work with every step full. No scheduler beats either; the
larger is the bound. `waits`: seconds in which the tree that ended last had no call running, neither at the server nor
at a tool, so it waited for a scheduler or for a seat. Where it is 0, what is above the bound is the server's: it serves
all trees in the same steps, and nobody knows in advance which tree will be the longest. `peak`: most memory allocated
from Python at once, by tracemalloc, the finished trees included and what the engine had before left out; builtin's is
from a run of its own in virtual time.

Targets: at least twice as fast as lock-step with tools of 0.05 to 2 s, at most 1.10 of the bound with tools of 5 to
30 s, no higher peak. ARPO and the last part are outside them. ARPO's 512 paths fill the server, so there is little to
wait for. In the last part the server is full while the first chains grow and nearly idle while the last rounds wait for
tools, so the wall lies between the larger bound and the sum of both.
"""

import asyncio
import gc
import re
import statistics
import time
import tracemalloc
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

from lockstep_reference import LockStep
from smoke import IS_BOOK, few

from ramify.config.run_config import GrowthConfig, RunConfig, StrategyConfig, ToolsConfig
from ramify.core.engine import Engine, Generation, Request
from ramify.core.format import Format
from ramify.core.judge import BranchJudge
from ramify.core.limits import Limits
from ramify.core.problem import Problem
from ramify.core.seeds import tree_seed
from ramify.core.tool import Branching, Tool, ToolResult, ToolSession
from ramify.engines.builtin import Builtin
from ramify.formats.arpo import arpo
from ramify.runner import loop
from ramify.runner.build import prepared_run
from ramify.runner.library import rollout
from ramify.runner.run import Run
from ramify.tasks.countdown import Countdown
from ramify.testing.clock import run_virtual
from ramify.testing.scripts import ScriptedTurn
from ramify.testing.simulated import Simulated
from ramify.tools.calculator import Calculator
from ramify.tools.function import FunctionTool

QUICK, SLOW = (0.05, 2.0), (5.0, 30.0)
NUM_PROMPTS = few(64, 4)
NUM_SLOW = few((64, 256, 512), (2,), book=(128,))
NUM_RUNS, NUM_SETS = few((2, 5), (1, 1), book=(1, 2))
NOT_BINDING = Limits(turns=10**6)
WAYS = ("lock-step", "ordered", "eager")


RUNNING: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
"""Number of a tree -> from when to when each of its calls ran, at the server or at a tool."""


@contextmanager
def noted(tree: str) -> Iterator[None]:
    clock = asyncio.get_running_loop().time
    began = clock()
    yield
    RUNNING[tree].append((began, clock()))


def waits_s() -> float:
    """Seconds in which the tree that ended last had no call running."""
    spans = sorted(max(RUNNING.values(), key=lambda spans: max(end for _, end in spans)))
    waited, reached = 0.0, spans[0][0]
    for began, ended in spans:
        waited += max(0.0, began - reached)
        reached = max(reached, ended)
    return waited


class Noted(Simulated):
    """The modelled server, which notes when it works for which tree."""

    async def generate(self, request: Request) -> Generation:
        with noted(request.request_id.partition("/")[0]):
            return await super().generate(request)


# -- the work --------------------------------------------------------------------------------------------------------


def log_uniform(low: float, high: float, seed: int) -> float:
    return low * (high / low) ** (seed / 2**64)


@dataclass(frozen=True)
class Slow:
    """A tool in front of another one, which makes each call take a time of its own."""

    tool: Tool
    between_s: tuple[float, float]

    @property
    def name(self) -> str:
        return self.tool.name

    @property
    def branching(self) -> Branching:
        return self.tool.branching

    async def open(self, problem: Problem) -> "SlowSession":
        return SlowSession(await self.tool.open(problem), problem.uid, self.between_s)


@dataclass(frozen=True)
class SlowSession:
    session: ToolSession
    uid: str
    between_s: tuple[float, float]

    async def call(self, arguments: str) -> ToolResult:
        with noted(self.uid.partition("-")[2]):
            await asyncio.sleep(log_uniform(*self.between_s, tree_seed(0, f"{self.uid} {arguments}")))
            return await self.session.call(arguments)

    async def fork(self) -> "SlowSession":
        return replace(self, session=await self.session.fork())

    async def close(self) -> None:
        await self.session.close()


LAST_CALL = re.compile(r".*<search>(\d)/(\d) ", re.DOTALL)
SHORT, LONG = (10, 100), (30, 300)


@dataclass(frozen=True)
class Agent:
    """Thinks, then searches; a path's first turn decides how often, one to six times."""

    num_thoughts: tuple[int, int]
    """Tokens of a turn before its call, log-uniform."""

    def __call__(self, turn: ScriptedTurn) -> str:
        call = LAST_CALL.match(turn.context)
        done, wanted = (int(call[1]), int(call[2])) if call else (0, 1 + turn.seed % 6)
        thoughts = "." * round(log_uniform(*self.num_thoughts, turn.seed))
        if done == wanted:
            return f"{thoughts}<answer>{turn.seed % 10}</answer>"
        return f"{thoughts}<search>{done + 1}/{wanted} {turn.seed % 1000}</search>"


async def passage(arguments: str) -> str:
    """100 to 400 tokens about whatever was asked."""
    return "fact " * round(log_uniform(20, 80, tree_seed(0, arguments)))


@dataclass(frozen=True)
class Searching:
    """What a run needs of a task when it is handed its problems."""

    tools: Sequence[Tool]
    format: Format = field(default_factory=lambda: arpo({"search": "search"}))
    judges: Sequence[BranchJudge] = ()
    is_same_answer: Callable[[str, str], bool] = str.__eq__


@dataclass(frozen=True)
class Work:
    """Something to grow, on an engine made anew for each run."""

    engine: Callable[[], Any]
    task: Any
    problems: Sequence[Problem]
    strategy: str = "offline"
    max_response_tokens: int = 4096
    max_calls: int = 64
    """Tool calls at once."""

    def config(self, way: str) -> RunConfig:
        return RunConfig(
            strategy=StrategyConfig(name=self.strategy),
            growth=GrowthConfig(max_response_tokens=self.max_response_tokens),
            tools=ToolsConfig(max_parallel=self.max_calls),
            delivery="eager" if way == "eager" else "ordered",
            limits=NOT_BINDING if way == "ordered" else Limits(),
            max_trees=len(self.problems),
        )

    async def grown(self, way: str, engine: Engine) -> tuple[float, Any]:
        """(seconds of the loop's clock, the trees) of one way."""
        clock = asyncio.get_running_loop().time
        began = clock()
        if way == "lock-step":
            run = Run(prepared_run(self.config(way), self.problems, engine=engine, task=self.task))
            trees: Any = await LockStep(run).grow()
        else:
            trees = await rollout(self.problems, config=self.config(way), engine=engine, task=self.task)
        return clock() - began, trees


def simulated(
    number: int,
    between_s: tuple[float, float],
    *,
    strategy: str = "offline",
    num_thoughts: tuple[int, int] = SHORT,
    seed: int = 0,
) -> Work:
    problems = [Problem(f"{seed}-{i}", f"who is number {i}?") for i in range(number)]
    tool = Slow(FunctionTool(passage, name="search"), between_s)
    max_calls = 64 if between_s == QUICK else 100_000
    return Work(lambda: Noted(Agent(num_thoughts)), Searching((tool,)), problems, strategy, max_calls=max_calls)


def builtin() -> Work:
    task = replace(Countdown(), tools=(Slow(Calculator(), QUICK),))
    return Work(lambda: Builtin(num_slots=256), task, task.problems("heldout", NUM_PROMPTS, 0), max_response_tokens=224)


# -- measuring -------------------------------------------------------------------------------------------------------


@dataclass
class Grown:
    """What one way came to."""

    wall_s: float
    cpu_s: float
    peak_mb: float
    num_leaves: int
    num_decoded: int
    mean_batch: float
    least_s: float = 0.0
    waits_s: float = 0.0


async def in_one_loop(work: Work, way: str, engine: Engine) -> tuple[float, Any]:
    try:
        return await work.grown(way, engine)
    finally:
        await engine.close()


def measured(work: Work, way: str, *, run: Callable[[Coroutine[Any, Any, Any]], Any], traces: bool = False) -> Grown:
    """Grow `work` once. Memory is traced only if asked, which slows the run."""
    engine = work.engine()
    RUNNING.clear()
    gc.collect()
    if traces:
        tracemalloc.start()
    began = time.process_time()
    wall_s, trees = run(in_one_loop(work, way, engine))
    cpu_s = time.process_time() - began
    peak_mb = tracemalloc.get_traced_memory()[1] / 1e6 if traces else 0.0
    tracemalloc.stop()
    leaves = [root.leaves() for root in trees] if way == "lock-step" else [tree.leaves() for tree in trees.trees]
    least_s, waited_s = (engine.least_s, waits_s()) if isinstance(engine, Noted) else (0.0, 0.0)
    stats = engine.stats
    num_leaves = sum(map(len, leaves))
    return Grown(wall_s, cpu_s, peak_mb, num_leaves, stats.num_decoded, stats.mean_batch, least_s, waited_s)


def alone_s(work: Work) -> list[float]:
    """Seconds of each tree by itself."""
    singles = (replace(work, problems=[problem]) for problem in work.problems)
    return [run_virtual(in_one_loop(single, "eager", single.engine()))[0] for single in singles]


def one_work(grown: Sequence[Grown]) -> None:
    """All ways must have grown the same."""
    assert len({(g.num_leaves, g.num_decoded) for g in grown}) == 1, grown


# -- the table -------------------------------------------------------------------------------------------------------

HEAD = (
    f"{'':36}{'leaves':>7}{'tokens':>9}{'wall s':>8}{'faster':>8}{'batch':>7}{'tree alone':>12}{'full steps':>12}"
    f"{'of bound':>10}{'waits':>8}{'peak MB':>9}{'CPU s':>7}"
)


def show(title: str, grown: Sequence[Grown], alone: float | None = None) -> None:
    """One line a way."""
    one_work(grown)
    for way, figures in zip(WAYS, grown, strict=True):
        bounds, faster, peak = f"{'':42}", "", ""
        if alone is not None:
            ratio = figures.wall_s / max(alone, figures.least_s)
            bounds = f"{alone:12.1f}{figures.least_s:12.1f}{ratio:10.2f}{figures.waits_s:8.1f}"
        if way != "lock-step":
            faster = f"{grown[0].wall_s / figures.wall_s:.2f}x"
        if figures.peak_mb:
            peak = f"{figures.peak_mb:.1f}"
        print(
            f"{title if way == 'lock-step' else '':26}{way:10}{figures.num_leaves:7}{figures.num_decoded:9}"
            f"{figures.wall_s:8.1f}{faster:>8}{figures.mean_batch:7.1f}{bounds}{peak:>9}{figures.cpu_s:7.1f}",
            flush=True,
        )


def show_quick(title: str, num_sets: int, **options: Any) -> None:
    """The middle one of several sets of problems, by how much faster `ordered` is than lock-step."""
    sets = [simulated(NUM_PROMPTS, QUICK, seed=seed, **options) for seed in range(num_sets)]
    grown = [[measured(work, way, run=run_virtual) for way in WAYS] for work in sets]
    order = sorted(range(num_sets), key=lambda i: grown[i][0].wall_s / grown[i][1].wall_s)
    middle = order[num_sets // 2]
    show(title, grown[middle], max(alone_s(sets[middle])))
    ratios = " ".join(f"{grown[i][0].wall_s / grown[i][1].wall_s:.2f}x" for i in order)
    print(f"{'':26}all sets: {ratios}")


def show_slow(title: str, work: Work, alone: float, *, traced: Sequence[str] = ()) -> None:
    show(title, [measured(work, way, run=run_virtual, traces=way in traced) for way in WAYS], alone)


def show_builtin(title: str) -> None:
    work = builtin()
    runs: dict[str, list[Grown]] = {way: [] for way in WAYS}
    for _, way in product(range(NUM_RUNS), WAYS):
        runs[way].append(measured(work, way, run=loop.run))
    one_work([grown for way in WAYS for grown in runs[way]])
    grown = [
        replace(
            runs[way][0],
            wall_s=statistics.mean(g.wall_s for g in runs[way]),
            cpu_s=statistics.mean(g.cpu_s for g in runs[way]),
            peak_mb=measured(work, way, run=run_virtual, traces=True).peak_mb,
        )
        for way in WAYS
    ]
    show(title, grown)


def main() -> None:
    print(HEAD)
    if not IS_BOOK:
        show_builtin(f"builtin {NUM_PROMPTS}, 0.05-2 s")
    show_quick(f"simulated {NUM_PROMPTS}, 0.05-2 s", NUM_SETS)
    if not IS_BOOK:
        show_quick("  the same, long turns", NUM_SETS, num_thoughts=LONG)
    show_quick("  the same, ARPO", 1, strategy="online")
    most = NUM_SLOW[-1]
    alone = alone_s(simulated(most, SLOW))
    for number in NUM_SLOW:
        traced = WAYS[:2] if number == most and not IS_BOOK else ()
        show_slow(f"simulated {number}, 5-30 s", simulated(number, SLOW), max(alone[:number]), traced=traced)
    work = simulated(most, SLOW, num_thoughts=LONG)
    show_slow("  the same, long turns", work, max(alone_s(work)))


if __name__ == "__main__":
    main()
