"""What the runner costs with 512 trees in flight: CPU a turn, the journal's share, memory over 10,000 trees.

Each tree has four chains of four to six turns: the scripted engine calls a calculator, reads its answer and goes on.
Medians of five runs; CPU is the process's own time, which other processes do not change much; wall time they do.

- overhead: all trees at once in virtual time, every call taking one virtual second. CPU of the run, less that of the
  same requests given to the same engine by one bare task a chain, a turn. Target: at most 250 microseconds.
- journal: the same in real time, every call taking a millisecond, written to a folder (durability "group") and not,
  in turns. What is recorded a second is then far more than any model can say. Target: below 20 % slower.
- what could be saved, in pairs, not in the book: CPU of a run in virtual time whose tools have no deadlines, and so no
  tasks of their own.
- memory: 10,000 trees of two chains, 512 at a time, journal on; resident size every 500 trees after the first 1,000.
  The engine counts no prefixes there, since that table grows for a while. Target: within 5 %.

Run: python bench/many_trees.py [FOLDER for the journals]
"""

import asyncio
import gc
import os
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Coroutine, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from smoke import IS_BOOK, few

from ramify.config.configure import to_toml
from ramify.config.run_config import GrowthConfig, RunConfig, StrategyConfig
from ramify.core.codec import Codec
from ramify.core.engine import Capabilities, Engine, Generation, Request
from ramify.core.problem import Problem
from ramify.runner import loop
from ramify.runner.build import prepared_run
from ramify.runner.deadline import Deadlines, Work
from ramify.runner.events import Event, Observer, TreeClosed
from ramify.runner.folder import header_of
from ramify.runner.recorder import Recorder
from ramify.runner.report import RunReport
from ramify.runner.run import Run
from ramify.store.store import FolderStore
from ramify.testing.clock import run_virtual
from ramify.testing.planned_faults import Delay
from ramify.testing.policies import chains
from ramify.testing.scripted import Scripted

IN_FLIGHT = few(512, 8)
NUM_RUNS = few(5, 1)
MANY, WARM_UP, EVERY = few((10_000, 1_000, 500), (40, 20, 5), book=(640, 512, 64))
RULE = chains(3, 4, 5)
"""Calls of a chain; its answer is one more turn."""
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def engine(delay_s: float, block_size: int = 16) -> Scripted:
    return Scripted(RULE, delay=Delay(call_s=delay_s), block_size=block_size)


def config(num_chains: int) -> RunConfig:
    return RunConfig(
        strategy=StrategyConfig(options={"n": num_chains}),
        growth=GrowthConfig(max_response_tokens=1024),
        max_trees=IN_FLIGHT,
    )


def problems(number: int) -> list[Problem]:
    return [Problem(f"p{i}", f"make {i} from 3 5 7") for i in range(number)]


async def grown(engine: Engine, *, trees: int, num_chains: int = 4, observers: Iterable[Observer] = ()) -> RunReport:
    run = Run(prepared_run(config(num_chains), problems(trees), engine=engine))
    try:
        return await run.grow(observers)
    finally:
        await run.close()


async def recorded(engine: Engine, folder: Path, *, trees: int, observers: Iterable[Observer] = ()) -> RunReport:
    """`grown` with a journal, which is whole on disk when this returns."""
    num_chains = 4 if trees == IN_FLIGHT else 2
    settings = config(num_chains)
    header = header_of(prepared_run(settings, [], engine=engine))
    store = FolderStore.create(folder, header, to_toml(settings))
    try:
        return await grown(engine, trees=trees, num_chains=num_chains, observers=[Recorder(store).observe, *observers])
    finally:
        store.close()


@dataclass
class Listening:
    """The scripted engine, and what each task asked of it."""

    inner: Scripted
    asked: dict[asyncio.Task[Any] | None, list[Request]] = field(default_factory=lambda: defaultdict(list))

    @property
    def codec(self) -> Codec:
        return self.inner.codec

    @property
    def capabilities(self) -> Capabilities:
        return self.inner.capabilities

    async def generate(self, request: Request) -> Generation:
        self.asked[asyncio.current_task()].append(request)
        return await self.inner.generate(request)

    async def close(self) -> None: ...


async def asked_alone(paths: Iterable[list[Request]]) -> None:
    """The engine's own part of a run: its requests, one bare task a chain."""
    answering = engine(delay_s=1.0)

    async def one(requests: list[Request]) -> None:
        for request in requests:
            await answering.generate(request)

    async with asyncio.TaskGroup() as group:
        for requests in paths:
            group.create_task(one(requests))


def timed(main: Coroutine[Any, Any, object], *, is_virtual: bool = False) -> tuple[float, float]:
    """(CPU seconds, wall seconds) of a coroutine, run as a run of the library's is."""
    gc.collect()
    wall, cpu = time.perf_counter(), time.process_time()
    if is_virtual:
        with loop.collecting_rarely():
            run_virtual(main)
    else:
        loop.run(main)
    return time.process_time() - cpu, time.perf_counter() - wall


def overhead() -> tuple[float, float, int]:
    """(microseconds a turn of the runner, of the engine, number of turns)."""
    listening = Listening(engine(delay_s=1.0))
    turns = run_virtual(grown(listening, trees=IN_FLIGHT)).turns
    paths = list(listening.asked.values())
    assert sum(map(len, paths)) == turns
    whole, alone = [], []
    for _ in range(NUM_RUNS):
        whole.append(timed(grown(engine(delay_s=1.0), trees=IN_FLIGHT), is_virtual=True)[0] / turns * 1e6)
        alone.append(timed(asked_alone(paths), is_virtual=True)[0] / turns * 1e6)
    over = [a - b for a, b in zip(whole, alone, strict=True)]
    return statistics.median(over), statistics.median(alone), turns


def journal(folder: Path) -> tuple[list[tuple[float, float]], list[tuple[float, float]]]:
    """(CPU, wall) seconds of each run without a journal and of each with one, run in turns."""
    off, on = [], []
    for run in range(NUM_RUNS):
        off.append(timed(grown(engine(delay_s=0.001), trees=IN_FLIGHT)))
        on.append(timed(recorded(engine(delay_s=0.001), folder / f"run-{run}", trees=IN_FLIGHT)))
    return off, on


@contextmanager
def without_deadlines() -> Iterator[None]:
    """Meanwhile the work of tools is awaited where it is asked for."""
    within = Deadlines.within

    async def awaited(self: Deadlines, work: Work[Any], seconds: float, **unwanted: object) -> Any:
        return await work()

    Deadlines.within = awaited
    try:
        yield
    finally:
        Deadlines.within = within


def saved() -> float:
    """The share of its CPU that a run saves without the deadlines of tools."""
    found: list[float] = []
    for _ in range(NUM_RUNS):
        whole = timed(grown(engine(delay_s=1.0), trees=IN_FLIGHT), is_virtual=True)[0]
        with without_deadlines():
            found.append(1 - timed(grown(engine(delay_s=1.0), trees=IN_FLIGHT), is_virtual=True)[0] / whole)
    return statistics.median(found)


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES


def memory(folder: Path) -> list[int]:
    """Resident bytes every `EVERY` trees after the first `WARM_UP`."""
    sizes: list[int] = []
    num_closed = 0

    def look(event: Event) -> None:
        nonlocal num_closed
        if isinstance(event, TreeClosed):
            num_closed += 1
            if num_closed >= WARM_UP and num_closed % EVERY == 0:
                sizes.append(resident_bytes())

    loop.run(recorded(engine(delay_s=0.001, block_size=0), folder / "many", trees=MANY, observers=[look]))
    return sizes


def line(what: str, measured: float, target: float, unit: str) -> None:
    print(f"{what:44}{measured:10.1f}{target:10.1f} {unit:12}{measured / target:6.2f}")


def main(folder: Path) -> None:
    print(f"{'':44}{'median':>10}{'target':>10} {'':12}{'ratio':>6}")
    over, alone, turns = overhead()
    line("overhead of a turn, CPU", over, 250, "us")
    off, on = journal(folder)
    for part, name in enumerate(("CPU", "wall")):
        slower = statistics.median(b[part] / a[part] - 1 for a, b in zip(off, on, strict=True))
        line(f"journal on, {name}", slower * 100, 20, "% slower")
    if not IS_BOOK:
        print(f"{'without the deadlines of tools, CPU':44}{saved() * 100:10.1f}{'':10} % saved")
    sizes = memory(folder)
    middle = statistics.median(sizes)
    spread = max(max(sizes) / middle - 1, 1 - min(sizes) / middle)
    line(f"resident size, {WARM_UP} to {MANY} trees: at most off", spread * 100, 5, "%")
    print(f"\n{turns} turns of {IN_FLIGHT} trees; the engine's own part: {alone:.1f} us a turn")
    for name, runs in (("off", off), ("on", on)):
        cpu, wall = (statistics.median(run[part] for run in runs) for part in (0, 1))
        print(f"journal {name:3}: {cpu / turns * 1e6:.0f} us CPU, {wall / turns * 1e6:.0f} us wall a turn")
    print(f"resident MB: {' '.join(f'{size / 1e6:.1f}' for size in sizes)}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else None) as name:
        main(Path(name))
