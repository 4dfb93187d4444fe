"""Seconds of `ramify demo` as a whole process, after set-up: wall and CPU, medians over runs in empty folders.

Target: at most 60 s of wall time on two cores. A fresh clone adds the set-up of `make demo`, timed by `time make demo`.
"""

import argparse
import resource
import statistics
import subprocess
import sys
import tempfile
import time


def seconds_of_a_run() -> tuple[float, float]:
    """Wall and CPU seconds of one demo."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [sys.executable, "-m", "ramify.cli.main", "demo", "--json"], cwd=folder, check=True, capture_output=True
        )
    wall = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    walls, cpus = zip(*(seconds_of_a_run() for _ in range(options.runs)), strict=True)
    print(f"{'':6} {'median':>8} {'min':>8} {'max':>8}   target <= 60 s of wall time, {options.runs} runs")
    for name, values in (("wall", walls), ("cpu", cpus)):
        print(f"{name:6} {statistics.median(values):8.1f} {min(values):8.1f} {max(values):8.1f}")


if __name__ == "__main__":
    main()
