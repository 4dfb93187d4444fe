"""The retriever: queries a second through HTTP, when branches ask together and when each query is a request of its own.

The server is a process of its own (`ramify retriever serve`); the client is the tool `retriever`, with so many branches
asking at once, each its next query as soon as it has its page. `one request a query` is the same without batching: a
tool for every branch. Passages and queries are those of `search_index.py`; three passages a page. The processor time a
query takes, all in all, is what a busy machine changes least.
"""

import argparse
import asyncio
import itertools
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from search_index import texts
from smoke import few

from ramify.core.tool import ToolSession
from ramify.tools.passages import Passage
from ramify.tools.retriever import Retriever
from ramify.tools.search_index import build_index

BRANCHES = few((1, 16, 64, 256), (1, 4))
SECONDS = few(3.0, 0.1)


@contextmanager
def serving(index: Path) -> Iterator[str]:
    command = [sys.executable, "-m", "ramify.cli.main", "retriever", "serve", str(index), "-q"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.terminate()


async def asked(tools: Sequence[Retriever], queries: Sequence[str]) -> tuple[int, float, float]:
    """Number of queries, how many a second, and the median seconds of a call; a branch a tool."""
    taken = itertools.cycle(queries)
    seconds: list[float] = []
    end = time.perf_counter() + SECONDS

    async def branch(session: ToolSession) -> None:
        while (began := time.perf_counter()) < end:
            await session.call(next(taken))
            seconds.append(time.perf_counter() - began)

    began = time.perf_counter()
    await asyncio.gather(*map(branch, tools))
    rate = len(seconds) / (time.perf_counter() - began)
    for tool in set(tools):
        await tool.let_go()
    return len(seconds), rate, float(np.median(seconds))


async def measure(url: str, queries: Sequence[str]) -> int:
    """Returns how many queries were asked."""
    num_asked = 0
    print(f"{'branches':>9}{'together':>12}{'a call':>11}{'one request a query':>22}{'a call':>11}{'ratio':>8}")
    for number in BRANCHES:
        num_together, together, median = await asked([Retriever(url)] * number, queries)
        num_alone, alone, median_alone = await asked([Retriever(url, window_s=0.0) for _ in range(number)], queries)
        num_asked += num_together + num_alone
        print(
            f"{number:9}{together:10.0f}/s{1000 * median:8.1f} ms{alone:20.0f}/s{1000 * median_alone:8.1f} ms"
            f"{together / alone:8.2f}"
        )
    return num_asked


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--passages", type=int, default=few(10_000, 100))
    parser.add_argument("--backend", choices=("sqlite", "tantivy"), default="sqlite")
    options = parser.parse_args()
    number: int = options.passages
    rng = np.random.default_rng(0)
    queries = list(texts(rng, 1000, 2, 6))
    print(f"{number:,} passages in {options.backend}; client and server share this machine's cores")
    with tempfile.TemporaryDirectory() as folder:
        index = Path(folder) / "index"
        passages = (Passage(text, f"title {i}") for i, text in enumerate(texts(rng, number, 40, 80)))
        build_index(index, passages, backend=options.backend)
        before = os.times()
        with serving(index) as url:
            num_asked = asyncio.run(measure(url, queries))
        after = os.times()
    client = after.user + after.system - before.user - before.system
    server = after.children_user + after.children_system - before.children_user - before.children_system
    print(
        f"processor time a query: {1000 * client / num_asked:.2f} ms client, {1000 * server / num_asked:.2f} ms server"
    )


if __name__ == "__main__":
    main()
