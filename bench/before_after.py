"""Two commits of `ramify` in pairs: the same figures by the same scripts, a process for each commit in turns.

Less is better in each line. A ratio is the median of the rounds' ratios, after over before, so a machine that is slow
for a while slows both. The commit is taken from the history of this checkout; without one there is nothing to compare.

Run: python bench/before_after.py [--commit b5018d6] [--rounds 5]
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Mapping
from io import BytesIO
from pathlib import Path
from typing import Final

import many_trees
import row_export
import search_speed
from http_overhead import NUM_SAMPLED, ours, requests, same_tokens
from instant_vllm import instant_servers
from journal_speed import timed, written
from smoke import few

import ramify
from ramify.rows import jsonl, parquet
from ramify.rows.row import rows_of
from ramify.runner import loop
from ramify.store.journal import read

CHECKOUT: Final = Path(__file__).resolve().parent.parent
BEFORE: Final = "b5018d6"
"""The commit before the work on speed."""
IN_FLIGHT: Final = few(512, 8, book=128)
NUM_NODES: Final = few(2000, 40)
NUM_REQUESTS: Final = few(1000, 16)
NUM_STEPS: Final = few(2000, 20)
SEARCHES: Final = ("ab_mcts", "best_first", "mcts", "mctsr", "rstar_mcts")


def turn() -> float:
    many_trees.NUM_RUNS, many_trees.IN_FLIGHT = 1, IN_FLIGHT
    return many_trees.overhead()[0]


def search(name: str) -> Callable[[], float]:
    def measure() -> float:
        search_speed.RUNS = 1
        return search_speed.microseconds(search_speed.ROWS[name], NUM_NODES, 1)[0]

    return measure


def rows(num_turns: int) -> Callable[[], float]:
    def measure() -> float:
        made = row_export.tree(16, num_turns)
        return 1e3 * row_export.seconds(lambda: rows_of(made), rounds=few(5, 1))[0]

    return measure


def export(write: Callable[..., int], suffix: str) -> Callable[[], float]:
    def measure() -> float:
        made = rows_of(row_export.tree(16, 40))
        with tempfile.TemporaryDirectory() as folder:
            files = (Path(folder, f"{number}{suffix}") for number in range(100))
            return 1e3 * row_export.seconds(lambda: write(made, next(files)), rounds=few(5, 1))[0]

    return measure


def journal() -> float:
    """Microseconds a record of 20 tokens, read."""
    with tempfile.TemporaryDirectory() as folder:
        records = written(Path(folder, "journal"), NUM_STEPS, 20)
        return 1e6 * timed(lambda: read(Path(folder, "journal")))[1] / len(records)


def request() -> float:
    """Microseconds of this process's CPU for a request of 64 tokens, 64 in flight."""
    with instant_servers(same_tokens) as (url,):
        return 1e3 * loop.run(ours(url, 64, requests(NUM_REQUESTS)))[1]


FIGURES: Final[Mapping[str, Callable[[], float]]] = {
    f"a turn, {IN_FLIGHT} trees in flight, µs": turn,
    **{f"a node of {name}, {NUM_NODES:,} nodes, µs": search(name) for name in SEARCHES},
    "rows of a tree of 16 x 4k, 8 turns, ms": rows(8),
    "rows of a tree of 16 x 4k, 40 turns, ms": rows(40),
    "its JSON lines, ms": export(jsonl.write, ".jsonl"),
    "its Parquet file, ms": export(parquet.write, ".parquet"),
    "a record of a journal, read, µs": journal,
    f"a request of {NUM_SAMPLED} tokens, µs": request,
}


def figures(source: Path) -> list[float]:
    """The figures of the package in `source`, measured by a process of its own."""
    search_path = [str(source), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(search_path)}
    command = [sys.executable, __file__, "--of", str(source)]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def checked_out(commit: str, folder: Path) -> Path | None:
    """The sources of a commit, in `folder`; None = this checkout does not know it."""
    done = subprocess.run(["git", "archive", commit, "src"], cwd=CHECKOUT, capture_output=True, check=False)
    if done.returncode:
        return None
    with tarfile.open(fileobj=BytesIO(done.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder / "src"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--commit", default=BEFORE)
    parser.add_argument("--rounds", type=int, default=few(5, 1))
    parser.add_argument("--of", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.of is not None:
        assert Path(ramify.__file__).is_relative_to(options.of), ramify.__file__
        print(json.dumps([measure() for measure in FIGURES.values()]))
        return
    with tempfile.TemporaryDirectory() as folder:
        before = checked_out(options.commit, Path(folder))
        if before is None:
            print(f"skipped: this checkout has no commit {options.commit}: git fetch --unshallow, or name another one")
            return
        began = time.perf_counter()
        rounds = [(figures(before), figures(CHECKOUT / "src")) for _ in range(options.rounds)]
    print(f"{'':44} {options.commit:>9} {'now':>9} {'ratio':>7}")
    for place, name in enumerate(FIGURES):
        pairs = [(old[place], new[place]) for old, new in rounds]
        middle = [statistics.median(pair[side] for pair in pairs) for side in (0, 1)]
        ratio = statistics.median(new / old for old, new in pairs)
        print(f"{name:44} {middle[0]:9.1f} {middle[1]:9.1f} {ratio:7.2f}")
    print(f"{options.rounds} pairs in {time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
