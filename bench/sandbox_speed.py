"""The tool `python`: how long a call, a fork and a start take, and how many calls a second 1, 2 and 4 sessions make,
and 4 siblings, which take turns.

Beside it on the same machine, in turns so that both meet the same load: a new interpreter for each call
(`python -I -c`), which keeps no state and has no walls, and a Jupyter kernel, which keeps its state and has neither
forks nor walls, where `jupyter_client` and `ipykernel` are installed.
"""

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from importlib.util import find_spec

from smoke import few

from ramify.core.problem import Problem
from ramify.sandbox.session import Session
from ramify.tools.python import Python

CODE = "x = globals().get('x', 0) + 1\nx"
LEAVES_FILE = CODE + "\nopen('notes.txt', 'w').write(str(x) * 100)"
ROUNDS = few(4, 1)
PROBLEM = Problem("bench", "bench")


def shown(name: str, seconds: list[float]) -> None:
    ordered = sorted(seconds)
    p99 = ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]
    print(f"  {name:44}{1000 * statistics.median(ordered):9.1f}{1000 * p99:9.1f}")


async def timed(work: Callable[[], Awaitable[object]], number: int) -> list[float]:
    seconds: list[float] = []
    for _ in range(number):
        began = time.perf_counter()
        await work()
        seconds.append(time.perf_counter() - began)
    return seconds


async def started(preload: tuple[str, ...], number: int) -> list[float]:
    async def work() -> None:
        session = await tool.open(PROBLEM)
        seconds.append(time.perf_counter() - began)
        await session.close()

    seconds: list[float] = []
    tool = Python(preload=preload, num_spares=0)
    for _ in range(number + 1):
        began = time.perf_counter()
        await work()
    return seconds[1:]  # The first one tries every wall.


async def forked(session: Session) -> None:
    """What the toolbox does for a call: a fork, one step in it, the fork given up."""
    fork = await session.fork()
    await fork.run(CODE)
    await fork.close()


async def throughput(sessions: list[Session], number: int) -> float:
    """Calls a second of all sessions together, which are closed afterwards."""
    for session in sessions:
        await session.run(CODE)
    began = time.perf_counter()
    await asyncio.gather(*(timed(lambda s=session: s.run(CODE), number // len(sessions)) for session in sessions))
    rate = number / (time.perf_counter() - began)
    for session in sessions:
        await session.close()
    return rate


async def siblings(tool: Python, number: int) -> list[Session]:
    first = await tool.open(PROBLEM)
    return [first, *[await first.fork() for _ in range(number - 1)]]


async def interpreted() -> None:
    await asyncio.to_thread(subprocess.run, [sys.executable, "-I", "-c", "x = 1\nprint(x)"], capture_output=True)


async def in_kernel(number: int) -> list[float] | None:
    if not find_spec("jupyter_client") or not find_spec("ipykernel"):
        return None
    from jupyter_client.manager import start_new_async_kernel  # pyright: ignore[reportMissingImports]

    manager, client = await start_new_async_kernel()
    try:

        async def work() -> None:
            await client.execute_interactive(CODE, output_hook=lambda message: None)

        await work()
        return await timed(work, number)
    finally:
        client.stop_channels()
        await manager.shutdown_kernel(now=True)


async def measure(number: int) -> None:
    load = os.getloadavg()[0]
    print(f"{os.cpu_count()} cores, load {load:.1f} before the first figure\n  {'':44}{'p50 ms':>9}{'p99 ms':>9}")
    for preload in ((), ("numpy",)):
        shown(f"start, preloaded: {', '.join(preload) or 'nothing'}", await started(preload, max(1, number // 20)))
    tool = Python(num_spares=0)
    session = await tool.open(PROBLEM)
    with_files = await tool.open(PROBLEM)
    for each in (session, with_files):
        await each.run("import numpy; held = numpy.ones(1 << 20)")
    calls: list[float] = []
    writes: list[float] = []
    forks: list[float] = []
    plain: list[float] = []
    kernel: list[float] | None = []
    cpu_s = 0.0
    for _ in range(ROUNDS):
        before = time.process_time()
        calls += await timed(lambda: session.run(CODE), number // ROUNDS)
        cpu_s += time.process_time() - before
        writes += await timed(lambda: with_files.run(LEAVES_FILE), number // ROUNDS)
        forks += await timed(lambda: forked(session), number // ROUNDS)
        plain += await timed(interpreted, max(1, number // ROUNDS // 10))
        kernel = None if kernel is None else _added(kernel, await in_kernel(number // ROUNDS))
    await with_files.close()
    await session.close()
    shown("call (state kept)", calls)
    shown("call that leaves a file", writes)
    shown("fork + call + close (as the toolbox calls)", forks)
    shown("a new interpreter: python -I -c", plain)
    if kernel is None:
        print("  Jupyter kernel: not measured, pip install jupyter_client ipykernel")
    else:
        shown("a call of a Jupyter kernel", kernel)
    print(f"  the host's own CPU time a call: {1000 * cpu_s / len(calls):.2f} ms")
    for num_sessions in (1, 2, 4):
        rate = await throughput([await tool.open(PROBLEM) for _ in range(num_sessions)], number)
        print(f"  {num_sessions} sessions: {rate:6.0f} calls/s")
    print(f"  4 siblings: {await throughput(await siblings(tool, 4), number):6.0f} calls/s")


def _added(seconds: list[float], more: list[float] | None) -> list[float] | None:
    return None if more is None else seconds + more


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=few(200, 3))
    asyncio.run(measure(parser.parse_args().calls))


if __name__ == "__main__":
    main()
