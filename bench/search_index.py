"""Search indexes on disk: how long one takes to build, and how long a query takes, with each backend.

Passages of 40 to 80 words and queries of 2 to 6, all drawn from one Zipf vocabulary, so that queries hold the frequent
words that make an OR slow; `every word` asks the same index without leaving them out. One thread, files in the cache.
"""

import argparse
import tempfile
import time
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from ramify.tools import search_index
from ramify.tools.search_index import Backend, Index, Passage, build_index, open_index

NUM_WORDS = 50_000
NUM_QUERIES = 300
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


def percentiles_ms(index: Index, queries: Sequence[str]) -> str:
    seconds: list[float] = []
    for query in queries:
        began = time.perf_counter()
        index.search(query, TOP_K)
        seconds.append(time.perf_counter() - began)
    return "".join(f"{1000 * value:9.2f}" for value in np.percentile(seconds, [50, 95, 99]))


def measure(backend: Backend, passages: Sequence[Passage], queries: Sequence[str], path: Path) -> None:
    began = time.perf_counter()
    build_index(path, passages, backend=backend)
    print(f"{backend}: built in {time.perf_counter() - began:.1f} s, {size_mb(path):.0f} MB")
    index = open_index(path)
    print(f"  {'without common words':24}{percentiles_ms(index, queries)}")
    least, search_index.MIN_LARGE = search_index.MIN_LARGE, len(passages) + 1
    print(f"  {'every word':24}{percentiles_ms(index, queries)}")
    search_index.MIN_LARGE = least


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--passages", type=int, default=100_000)
    number: int = parser.parse_args().passages
    rng = np.random.default_rng(0)
    passages = [Passage(text) for text in texts(rng, number, 40, 80)]
    queries = list(texts(rng, NUM_QUERIES, 2, 6))
    print(f"{number:,} passages, {NUM_QUERIES} queries; milliseconds at the 50th, 95th and 99th percentile")
    with tempfile.TemporaryDirectory() as folder:
        measure("sqlite", passages, queries, Path(folder) / "sqlite")
        if find_spec("tantivy"):
            measure("tantivy", passages, queries, Path(folder) / "tantivy")


if __name__ == "__main__":
    main()
