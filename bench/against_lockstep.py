"""The runner against the published batch loop (`lockstep_reference.py`): the same trees, tokens and tools, other waits.

Offline trees (3 chains, two rounds of one fork), and in one row online ones (ARPO, 16 paths). Both sides grow the same
nodes, which is checked. The time of a call of a tool is log-uniform and drawn from what is called, so it is the same on
both sides; no cap on calls at once binds.

- simulated: a scripted agent of 1 to 6 searches a path on a modelled server, in virtual time. Times are exact.
- builtin: the shipped model with its calculator, in real time, for the model's compute is real; median of `NUM_RUNS` runs
  in turns. A busy machine slows the model and not the tools.

An order-free strategy is told eagerly whatever the delivery, unless a limit is set; so `ordered` sets one that does not
bind. `tree alone`: the longest time that any tree takes by itself on the same server, which is its chain of dependent
calls. `full steps`: what the server would take for the same work with every step full. No scheduler beats either; the
larger is the bound. `peak`: most memory allocated from Python at once, by tracemalloc, the finished trees included and
the engine's own before the run not; the builtin's is from a run of its own.

Targets: at least twice as fast as lock-step with tools of 0.05 to 2 s, at most 1.10 of the bound with tools of 5 to
30 s, and no higher peak.
"""

import asyncio
import gc
import re
import statistics
import time
import tracemalloc
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

from lockstep_reference import LockStep

from ramify.config.run_config import GrowthConfig, RunConfig, StrategyConfig, ToolsConfig
from ramify.core.engine import Engine
from ramify.core.format import Format
from ramify.core.judge import Judge
from ramify.core.limits import Limits
from ramify.core.problem import Problem
from ramify.core.seeds import tree_seed
from ramify.core.tool import Branching, Tool, ToolResult, ToolSession
from ramify.engines.builtin import Builtin
from ramify.engines.scripts import ScriptedTurn
from ramify.engines.simulated import Simulated
from ramify.formats.arpo import arpo
from ramify.runner import loop
from ramify.runner.api import assemble, rollout
from ramify.runner.clock import run_virtual
from ramify.tasks.countdown import Countdown
from ramify.tools.calculator import Calculator
from ramify.tools.function import FunctionTool

QUICK, SLOW = (0.05, 2.0), (5.0, 30.0)
NUM_PROMPTS = 64
NUM_RUNS = 3
NOT_BINDING = Limits(turns=10**6)
WAYS = ("lock-step", "ordered", "eager")


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
        await asyncio.sleep(log_uniform(*self.between_s, tree_seed(0, f"{self.uid} {arguments}")))
        return await self.session.call(arguments)

    async def fork(self) -> "SlowSession":
        return replace(self, session=await self.session.fork())

    async def close(self) -> None:
        await self.session.close()


LAST_CALL = re.compile(r".*<search>(\d)/(\d) ", re.DOTALL)


def agent(turn: ScriptedTurn) -> str:
    """Thinks for 30 to 300 tokens, then searches; a path's first turn decides how often, up to six times."""
    call = LAST_CALL.match(turn.context)
    done, wanted = (int(call[1]), int(call[2])) if call else (0, 1 + turn.seed % 6)
    thoughts = "so " * round(log_uniform(10, 100, turn.seed))
    if done == wanted:
        return f"{thoughts}<answer>{turn.seed % 10}</answer>"
    return f"{thoughts}<search>{done + 1}/{wanted} {turn.seed:x}</search>"


async def passage(arguments: str) -> str:
    """100 to 400 tokens about whatever was asked."""
    return "fact " * round(log_uniform(20, 80, tree_seed(0, arguments)))


@dataclass(frozen=True)
class Searching:
    """What a run needs of a task when it is handed its problems."""

    tools: Sequence[Tool]
    format: Format = field(default_factory=lambda: arpo({"search": "search"}))
    judges: Sequence[Judge] = ()


@dataclass(frozen=True)
class Work:
    """Something to grow, on an engine made anew for each run."""

    engine: Callable[[], Any]
    task: Any
    problems: Sequence[Problem]
    strategy: str = "offline"
    max_response_tokens: int = 4096

    def config(self, way: str) -> RunConfig:
        return RunConfig(
            strategy=StrategyConfig(name=self.strategy),
            growth=GrowthConfig(max_response_tokens=self.max_response_tokens),
            tools=ToolsConfig(max_parallel=100_000, max_parked=100_000),
            delivery="eager" if way == "eager" else "ordered",
            limits=NOT_BINDING if way == "ordered" else Limits(),
            max_trees=len(self.problems),
        )

    async def grown(self, way: str, engine: Engine) -> tuple[float, Any]:
        """(seconds of the loop's clock, the trees) of one way."""
        clock = asyncio.get_running_loop().time
        began = clock()
        if way == "lock-step":
            run = assemble(self.config(way), self.problems, engine=engine, task=self.task)
            trees: Any = await LockStep(run).grow()
        else:
            trees = await rollout(self.problems, config=self.config(way), engine=engine, task=self.task)
        return clock() - began, trees


def simulated(number: int, between_s: tuple[float, float], strategy: str = "offline") -> Work:
    problems = [Problem(f"p{i}", f"who is number {i}?") for i in range(number)]
    tool = Slow(FunctionTool(passage, name="search"), between_s)
    return Work(lambda: Simulated(agent), Searching((tool,)), problems, strategy)


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


async def in_one_loop(work: Work, way: str, engine: Engine) -> tuple[float, Any]:
    try:
        return await work.grown(way, engine)
    finally:
        await engine.close()


def measured(work: Work, way: str, *, run: Callable[[Coroutine[Any, Any, Any]], Any], traces: bool) -> Grown:
    """Grow `work` once. Memory is traced only if asked, which slows the run."""
    engine = work.engine()
    gc.collect()
    if traces:
        tracemalloc.start()
    began = time.process_time()
    wall_s, trees = run(in_one_loop(work, way, engine))
    cpu_s = time.process_time() - began
    peak_mb = tracemalloc.get_traced_memory()[1] / 1e6 if traces else 0.0
    tracemalloc.stop()
    leaves = [root.leaves() for root in trees] if way == "lock-step" else [tree.leaves() for tree in trees.trees]
    least_s = engine.least_s if isinstance(engine, Simulated) else 0.0
    stats = engine.stats
    return Grown(wall_s, cpu_s, peak_mb, sum(map(len, leaves)), stats.num_decoded, stats.mean_batch, least_s)


def alone_s(work: Work) -> list[float]:
    """Seconds of each tree by itself."""
    singles = (replace(work, problems=[problem]) for problem in work.problems)
    return [run_virtual(in_one_loop(single, "eager", single.engine()))[0] for single in singles]


def one_work(grown: Sequence[Grown]) -> None:
    """All ways must have grown the same."""
    assert len({(g.num_leaves, g.num_decoded) for g in grown}) == 1, grown


# -- the table -------------------------------------------------------------------------------------------------------

HEAD = (
    f"{'':33}{'leaves':>7}{'tokens':>9}{'wall s':>8}{'faster':>8}{'batch':>7}{'tree alone':>12}{'full steps':>12}"
    f"{'of bound':>10}{'peak MB':>9}{'CPU s':>7}"
)


def line(title: str, way: str, grown: Grown, lockstep: Grown, alone: float | None) -> None:
    bounds = f"{'':34}"
    if alone is not None:
        ratio = grown.wall_s / max(alone, grown.least_s)
        bounds = f"{alone:12.1f}{grown.least_s:12.1f}{ratio:10.2f}"
    faster = "" if way == "lock-step" else f"{lockstep.wall_s / grown.wall_s:.2f}x"
    print(
        f"{title if way == 'lock-step' else '':23}{way:10}{grown.num_leaves:7}{grown.num_decoded:9}{grown.wall_s:8.1f}"
        f"{faster:>8}{grown.mean_batch:7.1f}{bounds}{grown.peak_mb:9.1f}{grown.cpu_s:7.1f}",
        flush=True,
    )


def show(title: str, grown: Sequence[Grown], alone: float | None = None) -> None:
    one_work(grown)
    for way, figures in zip(WAYS, grown, strict=True):
        line(title, way, figures, grown[0], alone)


def show_simulated(title: str, work: Work, alone: Sequence[float]) -> None:
    grown = [measured(work, way, run=run_virtual, traces=True) for way in WAYS]
    show(title, grown, max(alone[: len(work.problems)]))


def show_builtin() -> None:
    work = builtin()
    runs: dict[str, list[Grown]] = {way: [] for way in WAYS}
    for _, way in product(range(NUM_RUNS), WAYS):
        runs[way].append(measured(work, way, run=loop.run, traces=False))
    one_work([grown for way in WAYS for grown in runs[way]])
    grown = [
        replace(
            runs[way][0],
            wall_s=statistics.median(g.wall_s for g in runs[way]),
            cpu_s=statistics.median(g.cpu_s for g in runs[way]),
            peak_mb=measured(work, way, run=run_virtual, traces=True).peak_mb,
        )
        for way in WAYS
    ]
    show(f"builtin, {NUM_PROMPTS}, 0.05-2 s", grown)


def main() -> None:
    print(HEAD)
    for strategy in ("offline", "online"):
        work = simulated(NUM_PROMPTS, QUICK, strategy)
        name = "simulated" if strategy == "offline" else "same, ARPO"
        show_simulated(f"{name}, {NUM_PROMPTS}, 0.05-2 s", work, alone_s(work))
    alone = alone_s(simulated(512, SLOW))
    for number in (64, 256, 512):
        show_simulated(f"simulated, {number}, 5-30 s", simulated(number, SLOW), alone)
    show_builtin()


if __name__ == "__main__":
    main()
