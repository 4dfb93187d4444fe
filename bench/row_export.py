"""Rows, credit and export files of finished trees: milliseconds a tree, beside the libraries that encode the files.

Paths have 3,000 sampled and 1,000 given tokens, in 8 turns or in 40: 16 chains, a tree of 16 leaves, and trees of more.
The trees are grown by the driver from steps made beforehand; nothing but what is named is timed, in CPU time, medians
of the rounds. Less is better.

- `rows`: `rows_of` with the credit that the strategy takes. Target: at most 5 ms for 16 leaves.
- a format: rows to a new file, over the time in which the library below encodes the same fields, made beforehand:
  msgspec for JSON (`encode_lines` of the records), pyarrow for Parquet (a table of columns, written). Target: at most
  2.

Run: python bench/row_export.py [--rounds N] [--smoke]
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path

import msgspec
import numpy as np
import pyarrow
import pyarrow.parquet
from rich.console import Console
from rich.table import Table
from smoke import few
from tree_overhead import SOURCE, grown

from ramify.core.command import Score
from ramify.core.segment import Finish, Segment, ToolCall, Usage
from ramify.core.strategy import Strategy
from ramify.core.tree import Step, Tree
from ramify.rows import jsonl, parquet
from ramify.rows.records import record
from ramify.rows.row import Row, rows_of
from ramify.strategies.chains import Chains, ChainsConfig
from ramify.strategies.offline import Offline, OfflineConfig

NUM_SAMPLED, NUM_GIVEN = 3000, 1000


def step(rng: np.random.Generator, *, num_turns: int, is_last: bool) -> Step:
    """A turn: what a model sampled, and what a tool answered. Logprobs are those of a model that is mostly sure."""
    ids = rng.integers(65, 90, NUM_SAMPLED // num_turns).astype(np.int32)
    logprobs = np.log1p(-(rng.random(len(ids)) ** 4)).astype(np.float32)
    action = Segment(
        "sampled",
        ids,
        logprobs=logprobs,
        source=SOURCE,
        finish=Finish("stop", "</calc>"),
        seed=1,
        version=1,
        usage=Usage(1, len(ids)),
    )
    result = Segment("given", ids[: NUM_GIVEN // num_turns], tool_call=ToolCall("calculator", "1+1", result="2"))
    if is_last:
        return Step((action, result), stop="answer", scores=(Score("judge", float(rng.random() < 0.5)),))
    return Step((action, result))


def long_tree(strategy: Strategy, num_turns: int) -> Tree:
    rng = np.random.default_rng(1)
    return grown(strategy, lambda level: step(rng, num_turns=num_turns, is_last=level == num_turns - 1), num_turns)


def chains(num_leaves: int, num_turns: int) -> Tree:
    return long_tree(Chains(ChainsConfig(n=num_leaves), np.random.default_rng(0)), num_turns)


def tree(num_leaves: int, num_turns: int) -> Tree:
    """A quarter of the leaves are chains, the others forks of them."""
    initial = num_leaves // 4
    config = OfflineConfig(initial_rollouts=initial, n=num_leaves, expansion_iterations=3, expansion_nodes=initial)
    return long_tree(Offline(config, np.random.default_rng(0)), num_turns)


def seconds(*works: Callable[[], object], rounds: int) -> list[float]:
    """CPU seconds of each of `works`, which take turns; medians."""
    times: list[list[float]] = [[] for _ in works]
    for _ in range(rounds):
        for work, took in zip(works, times, strict=True):
            began = time.process_time()
            work()
            took.append(time.process_time() - began)
    return [statistics.median(took) for took in times]


def json_alone(rows: list[Row], path: Path) -> Callable[[], object]:
    records, encoder = [record(row) for row in rows], msgspec.json.Encoder()
    return lambda: path.write_bytes(encoder.encode_lines(records))


def parquet_alone(rows: list[Row], path: Path) -> Callable[[], object]:
    """The columns as arrays and lists, given to pyarrow by its own schema of our files."""
    parquet.write(rows, path, force=True)
    table = pyarrow.parquet.read_table(path)
    columns = {name: table.column(name).to_pylist() for name in table.schema.names}
    for name in ("ids", "weights", "advantages", "logprobs"):
        columns[name] = [
            np.array(values, table.schema.field(name).type.value_type.to_pandas_dtype()) for values in columns[name]
        ]
    schema = table.schema
    return lambda: pyarrow.parquet.write_table(pyarrow.table(columns, schema=schema), path.with_suffix(".alone"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=few(9, 1))
    rounds = parser.parse_args().rounds
    table = Table(
        "", "tokens", "rows, ms", "µs a 1,000 tokens", "JSONL, ms", "over msgspec", "Parquet, ms", "over pyarrow"
    )
    shapes = [
        ("16 chains of 8 turns", chains, 16, 8),
        ("16 chains of 40 turns", chains, 16, 40),
        ("tree of 16, 8 turns", tree, 16, 8),
        ("tree of 16, 40 turns", tree, 16, 40),
        ("tree of 128, 40 turns", tree, 128, 40),
        ("tree of 1,024, 40 turns", tree, 1024, 40),
    ]
    with tempfile.TemporaryDirectory() as folder:
        path, number = Path(folder), count()
        for name, make, num_leaves, num_turns in few(shapes, shapes[:1]):
            made = make(num_leaves, num_turns)
            rows = rows_of(made)
            num_tokens = sum(map(len, rows))
            [rows_s] = seconds(lambda made=made: rows_of(made), rounds=rounds)
            cells = [name, f"{num_tokens:,}", f"{rows_s * 1e3:.1f}", f"{rows_s / num_tokens * 1e9:.1f}"]
            if num_leaves <= 128:
                fewer = min(rounds, 3) if num_leaves > 16 else rounds
                ours, alone = seconds(
                    lambda rows=rows: jsonl.write(rows, path / f"{next(number)}.jsonl"),
                    json_alone(rows, path / "alone.jsonl"),
                    rounds=fewer,
                )
                cells += [f"{ours * 1e3:.1f}", f"{ours / alone:.2f}"]
                ours, alone = seconds(
                    lambda rows=rows: parquet.write(rows, path / f"{next(number)}.parquet"),
                    parquet_alone(rows, path / "alone.parquet"),
                    rounds=fewer,
                )
                cells += [f"{ours * 1e3:.1f}", f"{ours / alone:.2f}"]
            table.add_row(*cells)
    Console(width=120 if not sys.stdout.isatty() else None).print(table)


if __name__ == "__main__":
    main()
