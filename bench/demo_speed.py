"""Seconds of `ramify demo` and `ramify demo --compare` once everything is set up: what a newcomer waits for.

Each is a process of its own in an empty folder, start of Python included. `ramify demo` runs on a terminal of its own
(100 x 40), where its tree grows on the screen: the time to the first node drawn, and to the end. Medians. Wall time
depends on what else the machine does; CPU time of the command and its children does much less. Targets: `demo` at most
10 s of wall time on 2 cores, `demo --compare` at most 20 s of CPU time.

Run: python bench/demo_speed.py [--runs N] [--smoke]
"""

import argparse
import os
import pty
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import ramify

NODE = "─ ".encode()
"""What stands before a node of a drawn tree."""
DEMO_TARGET_S = 10.0
COMPARE_TARGET_S = 20.0


@dataclass(frozen=True, slots=True)
class DemoSeconds:
    """Seconds of one command."""

    first_node: float | None
    """None = it draws no tree."""
    end: float
    cpu: float


def on_terminal(command: list[str], environment: dict[str, str]) -> float | None:
    """Run the command on a terminal of its own; return when its first node was drawn."""
    began = time.perf_counter()
    child, ours = pty.fork()
    if child == 0:
        os.execve(command[0], command, {**environment, "COLUMNS": "100", "LINES": "40", "TERM": "xterm-256color"})
    said, first = b"", None
    while more := read(ours):
        said += more
        if first is None and NODE in said:
            first = time.perf_counter() - began
    os.close(ours)
    _, status = os.waitpid(child, 0)
    if status:
        raise SystemExit(f"{command} ended with status {status}:\n{said.decode(errors='replace')}")
    return first


def read(terminal: int) -> bytes:
    """What was written to a terminal; empty when its command has ended, which Linux tells by an error."""
    try:
        return os.read(terminal, 65536)
    except OSError:
        return b""


def in_pipe(command: list[str], environment: dict[str, str]) -> None:
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def measured(run: Callable[[list[str], dict[str, str]], float | None], arguments: list[str]) -> DemoSeconds:
    """Run `ramify demo` with these arguments in an empty folder."""
    environment = {**os.environ, "PYTHONPATH": str(Path(ramify.__file__).parents[1])}
    before, began, here = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter(), Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            first = run([sys.executable, "-m", "ramify.cli.main", "demo", *arguments], environment)
        finally:
            os.chdir(here)
    end, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return DemoSeconds(first, end, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def shown(name: str, runs: list[DemoSeconds]) -> str:
    firsts = [run.first_node for run in runs if run.first_node is not None]
    first = f"{statistics.median(firsts):.1f}" if firsts else ""
    end, cpu = statistics.median(run.end for run in runs), statistics.median(run.cpu for run in runs)
    every = " ".join(f"{run.end:.1f}/{run.cpu:.1f}" for run in runs)
    return f"{name:24}{first:>14}{end:>10.1f}{cpu:>10.1f}   {every}"


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--smoke", action="store_true", help="one run of each, 8 problems, for the figures' form only")
    options = parser.parse_args(arguments)
    number, fast = (1, ["--fast"]) if options.smoke else (options.runs, [])
    demo = [measured(on_terminal, []) for _ in range(number)]
    compare = [measured(in_pipe, ["--compare", *fast]) for _ in range(number)]
    print(f"{'seconds':24}{'first node':>14}{'end':>10}{'CPU':>10}   end/CPU of all runs")
    print(shown("ramify demo", demo))
    print(shown(" ".join(["ramify demo --compare", *fast]), compare))
    end, cpu = statistics.median(run.end for run in demo), statistics.median(run.cpu for run in compare)
    print(f"over their targets: demo, end {end / DEMO_TARGET_S:.2f}; --compare, CPU {cpu / COMPARE_TARGET_S:.2f}")


if __name__ == "__main__":
    main(sys.argv[1:])
