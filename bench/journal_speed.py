"""Records a second that the journal takes, by durability, and what an append costs its caller; medians of five runs.

A record holds 300 token ids and 300 logprobs, about a step's worth. `alone` appends without waiting
and then closes; `32 waiters` has so many tasks each append a record and wait until it is durable, as trees do that
wait for their records. Run: python bench/journal_speed.py [FOLDER]
"""

import asyncio
import statistics
import sys
import tempfile
import time
from pathlib import Path

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

NUM_TOKENS = 300
NUM_RECORDS = few({"fsync": 300, "group": 6000, "os": 6000}, {"fsync": 32, "group": 64, "os": 64})
NUM_WAITERS = 32
NUM_RUNS = few(5, 1)
CODEC = ByteCodec(is_exact=True)


def header() -> Header:
    weights = WeightsValue(engine="none", codec=CODEC.name, codec_sha256=CODEC.sha256)
    return Header(
        library="bench", config_hash="", weights=(weights,), seed=0, delivery="ordered", isolation="none", created=0.0
    )


def tree_records(num_steps: int) -> list[TreeRecord]:
    """One tree of chains of one step each: opened, then asked, grown and outcome for every step."""
    rng = np.random.default_rng(0)
    problem = Problem("bench", "how fast?")
    prompt = [Segment("prompt", np.zeros(20, np.int32))]
    records: list[TreeRecord] = [recording.opened(0, problem, prompt=prompt, seed=0, codec=CODEC)]
    for number in range(num_steps):
        ids = rng.integers(0, 256, NUM_TOKENS).astype(np.int32)
        logprobs = -rng.random(NUM_TOKENS, np.float32)
        step = Step((Segment("sampled", ids, logprobs=logprobs, usage=Usage(1, NUM_TOKENS)),), stop="answer")
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


def reading(folder: Path) -> tuple[float, float]:
    """(records read a second, records replayed a second) of a tree of 2,000 steps."""
    records = tree_records(2000)
    journal = Journal.create(folder, header(), writing=Writing(durability="os"))
    for record in records:
        journal.append(record)
    journal.close()
    start = time.perf_counter()
    read(folder)
    middle = time.perf_counter()
    replay(records, CODEC, GrowthRules())
    return len(records) / (middle - start), len(records) / (time.perf_counter() - middle)


def main(folder: Path) -> None:
    record = tree_records(1)[2]
    print(f"{'durability':12}{'alone, records/s':>20}{'append, µs':>14}{'32 waiters, records/s':>24}")
    for durability in NUM_RECORDS:
        runs = [alone(folder / f"{durability}-{run}", record, durability) for run in range(NUM_RUNS)]
        waits = [waited_for(folder / f"{durability}-waited-{run}", record, durability) for run in range(NUM_RUNS)]
        speed, cost = (statistics.median(column) for column in zip(*runs, strict=True))
        print(f"{durability:12}{speed:>20,.0f}{cost:>14.1f}{statistics.median(waits):>24,.0f}")
    runs = [reading(folder / f"read-{run}") for run in range(NUM_RUNS)]
    read_speed, replay_speed = (statistics.median(column) for column in zip(*runs, strict=True))
    print(f"read back {read_speed:,.0f} records/s; replayed {replay_speed:,.0f} records/s")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else None) as name:
        main(Path(name))
