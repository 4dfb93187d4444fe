"""Search indexes on disk: how long one takes to build, and how long a query takes, beside SQLite's FTS5 by itself.

Passages of 40 to 80 words and queries of 2 to 6, all drawn from one Zipf vocabulary, so that queries hold the frequent
words that make an OR slow. One thread, files in the cache. `FTS5 alone` is a plain FTS5 table asked for the same words
joined by OR; `every word` asks our index without leaving common words out, which finds the same passages; `the tool` is
a whole call of the tool `search`: the query read, a thread, the index and the page.
"""

import argparse
import asyncio
import contextlib
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from smoke import few

from ramify.core.problem import Problem
from ramify.tools import passages as settings
from ramify.tools.passages import Passage, query_words
from ramify.tools.search import Search
from ramify.tools.search_index import Backend, build_index, open_index

NUM_WORDS = 50_000
NUM_QUERIES = few(300, 5)
TOP_K = 3


def texts(rng: np.random.Generator, number: int, shortest: int, longest: int) -> Iterator[str]:
    """`number` texts of so many words, the n-th most frequent word drawn 1/n as often as the first."""
    vocabulary = np.array([f"w{n}" for n in range(NUM_WORDS)])
    shares = np.cumsum(1 / np.arange(1, NUM_WORDS + 1))
    for length in rng.integers(shortest, longest + 1, number):
        yield " ".join(vocabulary[np.searchsorted(shares, rng.random(length) * shares[-1])])


def size_mb(path: Path) -> float:
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files) / 1e6


def told(name: str, seconds: Sequence[float]) -> str:
    return f"  {name:24}" + "".join(f"{1000 * value:9.2f}" for value in np.percentile(seconds, [50, 95, 99]))


def timed(search: Callable[[str], object], queries: Sequence[str]) -> list[float]:
    seconds: list[float] = []
    for query in queries:
        began = time.perf_counter()
        search(query)
        seconds.append(time.perf_counter() - began)
    return seconds


async def timed_tool(path: Path, queries: Sequence[str]) -> list[float]:
    session = await Search(path, top_k=TOP_K).open(Problem("p", "what?"))
    seconds: list[float] = []
    for query in queries:
        began = time.perf_counter()
        await session.call(query)
        seconds.append(time.perf_counter() - began)
    return seconds


def measure(backend: Backend, passages: Sequence[Passage], queries: Sequence[str], path: Path) -> None:
    began = time.perf_counter()
    build_index(path, passages, backend=backend)
    print(f"{backend}: built in {time.perf_counter() - began:.1f} s, {size_mb(path):.0f} MB")
    index = open_index(path)
    print(told("the tool", asyncio.run(timed_tool(path, queries))))
    print(told("without common words", timed(lambda query: index.search(query, TOP_K), queries)))
    least, settings.MIN_LARGE = settings.MIN_LARGE, len(passages) + 1
    print(told("every word", timed(lambda query: index.search(query, TOP_K), queries)))
    settings.MIN_LARGE = least
    index.close()


def measure_fts5(passages: Sequence[Passage], queries: Sequence[str], path: Path) -> None:
    """A table of FTS5 as its manual begins: texts in, `MATCH` and `rank` out."""
    began = time.perf_counter()
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute("CREATE VIRTUAL TABLE plain USING fts5(title, text)")
        database.executemany("INSERT INTO plain VALUES (?, ?)", ((p.title, p.text) for p in passages))
        database.commit()
        print(f"FTS5 alone: built in {time.perf_counter() - began:.1f} s, {size_mb(path):.0f} MB")

        def search(query: str) -> object:
            asked = " OR ".join(f'"{word}"' for word in query_words(query))
            found = "SELECT title, text, rank FROM plain WHERE plain MATCH ? ORDER BY rank LIMIT ?"
            return database.execute(found, (asked, TOP_K)).fetchall()

        print(told("every word", timed(search, queries)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--passages", type=int, default=few(20_000, 100), help="quoted figures: 100,000")
    number: int = parser.parse_args().passages
    rng = np.random.default_rng(0)
    passages = [Passage(text) for text in texts(rng, number, 40, 80)]
    queries = list(texts(rng, NUM_QUERIES, 2, 6))
    print(f"{number:,} passages, {NUM_QUERIES} queries; milliseconds at the 50th, 95th and 99th percentile")
    with tempfile.TemporaryDirectory() as folder:
        measure_fts5(passages, queries, Path(folder) / "fts5")
        measure("sqlite", passages, queries, Path(folder) / "sqlite")
        if find_spec("tantivy"):
            measure("tantivy", passages, queries, Path(folder) / "tantivy")


if __name__ == "__main__":
    main()
