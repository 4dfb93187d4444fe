"""Records a second that the journal takes, by durability, and what an append costs its caller; medians of five runs.

A record holds 300 token ids and 300 logprobs, about a step's worth. `alone` appends without waiting
and then closes; `32 waiters` has so many tasks each append a record and wait until it is durable, as trees do that
wait for their records. `read back` stands beside msgspec decoding the same lines to plain dicts, in turns, without
checksums or types. `bytes a token` are the journal's; `numbers` are the id and the logprob of each token, 4 bytes each
and 4/3 as base64, and the rest is what is said once a step; `zlib` is what compressed files or lines would have.

Run: python bench/journal_speed.py [FOLDER]
"""

import asyncio
import gc
import statistics
import sys
import tempfile
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np
from smoke import few

from ramify.core.codec import ByteCodec
from ramify.core.command import Grow
from ramify.core.growth import Done, GrowthRules
from ramify.core.problem import Problem
from ramify.core.segment import Segment, Usage
from ramify.core.tree import Step
from ramify.store import recording
from ramify.store.commit import Writing
from ramify.store.journal import Journal, read
from ramify.store.records import Header, TreeRecord, WeightsValue
from ramify.store.replay import replay

T = TypeVar("T")
NUM_TOKENS = 300
NUM_RECORDS = few({"fsync": 300, "group": 6000, "os": 6000}, {"fsync": 32, "group": 64, "os": 64})
NUM_WAITERS = 32
NUM_STEPS = few(2000, 20)
STEP_TOKENS = (300, 20)
"""A step of a model that thinks, and a short tool call."""
NUM_RUNS = few(5, 1)
CODEC = ByteCodec(is_exact=True)


def header() -> Header:
    weights = WeightsValue(engine="none", codec=CODEC.name, codec_sha256=CODEC.sha256)
    return Header(
        library="bench", config_hash="", weights=(weights,), seed=0, delivery="ordered", isolation="none", created=0.0
    )


def tree_records(num_steps: int, num_tokens: int = NUM_TOKENS) -> list[TreeRecord]:
    """One tree of chains of one step each: opened, then asked, grown and outcome for every step."""
    rng = np.random.default_rng(0)
    problem = Problem("bench", "how fast?")
    prompt = [Segment("prompt", np.zeros(20, np.int32))]
    records: list[TreeRecord] = [recording.opened(0, problem, prompt=prompt, seed=0, codec=CODEC)]
    for number in range(num_steps):
        ids = rng.integers(0, 256, num_tokens).astype(np.int32)
        logprobs = -rng.random(num_tokens, np.float32)
        step = Step((Segment("sampled", ids, logprobs=logprobs, usage=Usage(1, num_tokens)),), stop="answer")
        records += [
            recording.asked(0, number, [Grow(0)]),
            recording.grew(0, number, 0, step=step),
            recording.ended(0, number, Done(), num_steps=1),
        ]
    return records


def alone(folder: Path, record: TreeRecord, durability: str) -> tuple[float, float]:
    """(records a second until all are durable, microseconds an append takes its caller)."""
    journal = Journal.create(folder, header(), writing=Writing(durability=durability))
    num = NUM_RECORDS[durability]
    start = time.perf_counter()
    for _ in range(num):
        journal.append(record)
    appended = time.perf_counter()
    journal.close()
    return num / (time.perf_counter() - start), (appended - start) / num * 1e6


def waited_for(folder: Path, record: TreeRecord, durability: str) -> float:
    """Records a second with `NUM_WAITERS` tasks that wait for each of their records."""
    journal = Journal.create(folder, header(), writing=Writing(durability=durability))
    num = NUM_RECORDS[durability] // NUM_WAITERS

    async def one() -> None:
        for _ in range(num):
            await journal.synced(journal.append(record))

    async def everyone() -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(NUM_WAITERS):
                group.create_task(one())

    start = time.perf_counter()
    asyncio.run(everyone())
    seconds = time.perf_counter() - start
    journal.close()
    return num * NUM_WAITERS / seconds


def written(folder: Path, num_steps: int, num_tokens: int) -> list[TreeRecord]:
    """Write a journal of one tree; returns its records."""
    records = tree_records(num_steps, num_tokens)
    journal = Journal.create(folder, header(), writing=Writing(durability="os"))
    for record in records:
        journal.append(record)
    journal.close()
    return records


def lines_of(folder: Path) -> list[bytes]:
    return [line for path in sorted(folder.glob("*.jsonl")) for line in path.read_bytes().splitlines(keepends=True)]


def reading(folder: Path, num_tokens: int) -> tuple[float, float, float]:
    """Records of a tree that are read a second, that are replayed, and the time of reading over msgspec's."""
    records = written(folder, NUM_STEPS, num_tokens)
    _, ours = timed(lambda: read(folder))
    _, theirs = timed(lambda: [msgspec.json.decode(line[9:]) for line in lines_of(folder)])
    _, replayed = timed(lambda: replay(records, CODEC, GrowthRules()))
    return len(records) / ours, len(records) / replayed, ours / theirs


def timed(do: Callable[[], T]) -> tuple[T, float]:
    """What `do` returns, and the seconds of this process that it took."""
    gc.collect()
    start = time.process_time()
    return do(), time.process_time() - start


def bytes_line(folder: Path, num_tokens: int) -> str:
    """Where the bytes of a journal go: a line of the table."""
    written(folder, NUM_STEPS, num_tokens)
    lines, total = lines_of(folder), NUM_STEPS * num_tokens
    whole, alone = zlib.compress(b"".join(lines), 1), sum(len(zlib.compress(line, 1)) for line in lines)
    numbers = 2 * 4 * 4 / 3
    sizes = (sum(map(len, lines)) / total, numbers, len(whole) / total, alone / total)
    return f"{num_tokens:<12}" + "".join(f"{size:>18.1f}" for size in sizes)


def main(folder: Path) -> None:
    record = tree_records(1)[2]
    print(f"{'durability':12}{'alone, records/s':>20}{'append, µs':>14}{'32 waiters, records/s':>24}")
    for durability in NUM_RECORDS:
        runs = [alone(folder / f"{durability}-{run}", record, durability) for run in range(NUM_RUNS)]
        waits = [waited_for(folder / f"{durability}-waited-{run}", record, durability) for run in range(NUM_RUNS)]
        speed, cost = (statistics.median(column) for column in zip(*runs, strict=True))
        print(f"{durability:12}{speed:>20,.0f}{cost:>14.1f}{statistics.median(waits):>24,.0f}")
    for num_tokens in STEP_TOKENS:
        runs = [reading(folder / f"read-{num_tokens}-{run}", num_tokens) for run in range(NUM_RUNS)]
        read_speed, replay_speed, ratio = (statistics.median(column) for column in zip(*runs, strict=True))
        print(
            f"steps of {num_tokens} tokens: read back {read_speed:,.0f} records/s, {ratio:.1f} of msgspec's time; "
            f"replayed {replay_speed:,.0f} records/s"
        )
    print(f"\n{'step tokens':12}{'bytes a token':>18}{'numbers, base64':>18}{'zlib, file':>18}{'zlib, each line':>18}")
    for num_tokens in STEP_TOKENS:
        print(bytes_line(folder / f"bytes-{num_tokens}", num_tokens))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else None) as name:
        main(Path(name))
