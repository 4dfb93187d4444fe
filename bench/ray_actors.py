"""What it costs to share a run among Ray actors, one a core: the same trees in one process, and without Ray.

Two chains a tree by the scripted engine, which answers at once: nothing is measured but the runner, the journal and
what sharing adds. Every way writes its journals with the same durability (`group`: fdatasync; `os`: left to the
system), and must grow the same trees. Processes without Ray, and one actor alone, say what part of it is the
machine's.

- wall: from the start of the first process to the end of the last, Ray's own start included; grow: without Ray's start.
- a core: trees a second of `grow`, divided by the cores there are, but by one for the single process. Target: 70 % of
  the single process's.
- cpu: CPU a tree of the processes that grow, their start included; other work on the machine changes it little.
- beside: CPU a tree of what does not grow: the process that shares the work out, and Ray's own processes.
- growth: of the resident size of the growing processes together: the largest of the second half of the run over the
  largest of the second quarter. Target: at most 1.05.

Run: python bench/ray_actors.py [--trees 10000] [--workers CORES] [--durability group] [--folder DIR]
"""

import argparse
import importlib.util
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from smoke import few

from ramify.config.configure import resolve
from ramify.config.run_config import RunConfig
from ramify.core.shard import Portion, shards_of
from ramify.runner import loop
from ramify.runner.folder import begin, checked_start, grow_shard
from ramify.runner.saved import Saved
from ramify.sharded import ray
from ramify.store.shards import ShardedFolder

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
TICKS = os.sysconf("SC_CLK_TCK")
LOOK_S = 0.5


def config(trees: int, durability: str) -> RunConfig:
    flags = {
        "prompts": trees,
        "engine.name": "scripted",
        "engine.options": {"block_size": 0},
        "strategy.options": {"n": 2},
        "max_trees": 512,
        "durability": durability,
    }
    return resolve(preset="chains", flags=flags).config


@dataclass
class Watched:
    """CPU and memory of the processes that grow, and CPU of those beside them, looked at now and then."""

    cpu_s: dict[int, float] = field(default_factory=dict)
    beside_s: dict[int, float] = field(default_factory=dict)
    resident: list[int] = field(default_factory=list)

    def look(self, pids: list[int], beside: Iterable[int] = ()) -> None:
        """Look at processes that grow, and at others; those that have ended keep what was seen last."""
        sizes = 0
        for pid in beside:
            with suppress(OSError):
                self.beside_s[pid] = cpu_of(pid)
        for pid in pids:
            try:
                sizes += int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_BYTES
                self.cpu_s[pid] = cpu_of(pid)
            except OSError:
                return
        self.resident.append(sizes)

    @property
    def growth(self) -> float:
        """The largest size after the first half, over the largest of the second quarter."""
        quarter = len(self.resident) // 4
        return max(self.resident[2 * quarter :]) / max(self.resident[quarter : 2 * quarter])


def cpu_of(pid: int) -> float:
    """Seconds that a process has computed."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def begun_by(pid: int) -> set[int]:
    """The processes that a process has begun, and those that these have."""
    parents: dict[int, int] = {}
    for file in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parents[int(file.parent.name)] = int(file.read_text().rpartition(")")[2].split()[1])
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found


@dataclass
class Measured:
    name: str
    num_cores: int
    wall_s: float
    """From the first thing that is done to the last."""
    grow_s: float
    cpu_s: float
    watched: Watched


def writers(path: Path) -> list[int]:
    """The processes that write the shards of a run."""
    texts = [lock.read_text().strip() for lock in path.glob("shards/*/journal/lock")]
    return [int(text) for text in texts if text and Path("/proc", text).exists()]


def watching(watched: Watched, pids: Callable[[], list[int]], stop: "multiprocessing.synchronize.Event") -> None:
    while not stop.wait(LOOK_S):
        watched.look(pids())


def single(settings: RunConfig, out: Path) -> Measured:
    """In a process of its own, as the others are."""
    return _in_processes("one process", 1, out, lambda: [_process(_grow_single, settings, out)])


def plain(settings: RunConfig, out: Path, workers: int) -> Measured:
    header, text, problems = loop.run(checked_start(settings))
    ShardedFolder.create(out, header, text, num_shards=workers).close()
    cores = len(os.sched_getaffinity(0))
    begin_all = lambda: [_process(_grow_plain, out, shard.of(problems), workers) for shard in shards_of(workers)]  # noqa: E731
    return _in_processes(f"{workers} processes", cores, out, begin_all)


def _process(target: Callable[..., None], *arguments: object) -> multiprocessing.Process:
    process = multiprocessing.get_context("spawn").Process(target=target, args=arguments)
    process.start()
    return process


def _grow_single(settings: RunConfig, out: Path) -> None:
    begin(settings, out)


def _grow_plain(out: Path, portion: Portion, workers: int) -> None:
    loop.run(grow_shard(out, portion, num_at_once=workers))


def _in_processes(
    name: str, num_cores: int, out: Path, begin_all: Callable[[], list[multiprocessing.Process]]
) -> Measured:
    began, watched = time.perf_counter(), Watched()
    processes = begin_all()
    while any(process.is_alive() for process in processes):
        watched.look([process.pid for process in processes if process.is_alive() and process.pid])
        next(p for p in processes if p.is_alive() or p is processes[-1]).join(LOOK_S)
    wall = time.perf_counter() - began
    return Measured(name, num_cores, wall, wall, sum(watched.cpu_s.values()), watched)


def actors(settings: RunConfig, out: Path, workers: int) -> Measured:
    watched, began = Watched(), time.perf_counter()

    def look(tally: object) -> None:
        growing = writers(out)
        watched.look(growing, begun_by(os.getpid()).difference(growing))

    report = ray.rollout(settings, out, num_workers=workers, show=look)
    wall = time.perf_counter() - began
    cores = min(workers, len(os.sched_getaffinity(0)))
    return Measured(
        f"{workers} Ray actor{'s' * (workers > 1)}", cores, wall, report.seconds, sum(watched.cpu_s.values()), watched
    )


def trees_of(path: Path) -> list[bytes]:
    return [b"".join(tree.branch(leaf).ids.tobytes() for leaf in tree.leaves()) for tree in Saved.open(path).trees()]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--trees", type=int, default=few(10_000, 20))
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--durability", default="group")
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    settings = config(options.trees, options.durability)
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        found = [
            single(settings, folder / "single"),
            plain(settings, folder / "plain", options.workers),
            actors(settings, folder / "actor", 1),
            actors(settings, folder / "actors", options.workers),
        ]
        grown = [trees_of(folder / each) for each in ("single", "plain", "actor", "actors")]
        assert len(grown[0]) == options.trees and all(each == grown[0] for each in grown)
    show(found, options.trees)


def show(found: list[Measured], trees: int) -> None:
    heads = ("wall s", "grow s", "trees/s", "a core", "of one", "cpu ms", "of one", "beside", "MB", "growth")
    print(f"{'':16}{''.join(f'{head:>8}' for head in heads)}")
    one, cpu = trees / found[0].grow_s, found[0].cpu_s
    for each in found:
        rate = trees / each.grow_s
        print(
            f"{each.name:16}{each.wall_s:8.1f}{each.grow_s:8.1f}{rate:8.1f}{rate / each.num_cores:8.1f}"
            f"{rate / each.num_cores / one:8.2f}{each.cpu_s / trees * 1000:8.2f}{cpu / each.cpu_s:8.2f}"
            f"{sum(each.watched.beside_s.values()) / trees * 1000:8.2f}"
            f"{statistics.median(each.watched.resident) / 1e6:8.0f}{each.watched.growth:8.2f}"
        )
    print("of one: over that of the single process, of the rate a core and of trees a CPU second; target 0.70")
    print("growth: of the resident size; target at most 1.05")
    for each in found:
        step = max(1, len(each.watched.resident) // 12)
        print(f"{each.name:16} MB over time: {' '.join(f'{size / 1e6:.0f}' for size in each.watched.resident[::step])}")


if __name__ == "__main__":
    if importlib.util.find_spec("ray") is None:
        print("skipped: there is no Ray; pip install 'ramify[ray]'")
    else:
        main()
