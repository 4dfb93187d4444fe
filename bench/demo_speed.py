"""Seconds that `ramify demo` takes once everything is set up: what `make demo` does on a machine that is ready.

The whole command as its own process in an empty folder, start of Python included; median of five runs. Wall time
depends on what else the machine does; CPU time of the command and its children does much less. Target: at most 60 s on
2 cores.

Run: python bench/demo_speed.py [further arguments of the command, such as --fast]
"""

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import ramify

NUM_RUNS = 5
TARGET_S = 60.0


def measured(arguments: list[str]) -> tuple[float, float]:
    """(wall seconds, CPU seconds) of one demo."""
    environment = {**os.environ, "PYTHONPATH": str(Path(ramify.__file__).parents[1])}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "ramify.cli.main", "demo", *arguments]
        subprocess.run(command, cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL)
    wall = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main(arguments: list[str]) -> None:
    runs = [measured(arguments) for _ in range(NUM_RUNS)]
    print(f"{'ramify demo':12}{'median s':>10}{'target s':>10}{'ratio':>8}   all runs")
    for name, seconds in zip(("wall", "CPU"), zip(*runs, strict=True), strict=True):
        median = statistics.median(seconds)
        every = " ".join(f"{s:.1f}" for s in seconds)
        print(f"{name:12}{median:10.1f}{TARGET_S:10.1f}{median / TARGET_S:8.2f}   {every}")


if __name__ == "__main__":
    main(sys.argv[1:])
