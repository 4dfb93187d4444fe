"""Runs for `viewer.py`: one random tree of any size, and many trees made of the records of a small real run.

They are written record by record into the store of a run that began as the real one did, so every reader replays them
as it does any other. A random tree has a command for each node. Its ids are drawn evenly; its logprobs and measures
have the full precision of float32, as a model's have.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from ramify.core.codec import Codec
from ramify.core.command import Grow, Score
from ramify.core.growth import Done
from ramify.core.problem import Problem
from ramify.core.segment import Origination, Segment, Usage
from ramify.core.tree import Step
from ramify.store import recording
from ramify.store.records import OpenedRecord, RunRecord, TreeRecord
from ramify.store.store import FolderStore, header_and_config, stream
from ramify.view.opened_run import OpenedRun

MAX_DEPTH: Final = 30
FORK_SHARE: Final = 0.25
"""Share of nodes that fork from any node; the others continue the node before them."""
PROBLEM: Final = Problem("random", "how fast is the page of this tree?")
FIRST_WORD: Final = 300
"""Ids from here on are words of the built-in engine's tokenizer."""


def begun(folder: Path, like: Path) -> FolderStore:
    """A new run that began as another one did. The caller must close it."""
    return FolderStore.create(folder, *header_and_config(like))


def written(folder: Path, like: Path, records: Iterable[RunRecord]) -> Path:
    """A new run with these records."""
    store = begun(folder, like)
    for record in records:
        store.append(record)
    store.close()
    return folder


def repeated(like: Path, num_trees: int) -> Iterator[RunRecord]:
    """The records of a run again and again, with new numbers and uids, until there are so many trees."""
    found = [record for record in stream(like) if isinstance(record, TreeRecord)]
    num_like = 1 + max(record.tree for record in found)
    for first in range(0, num_trees, num_like):
        for record in found:
            number = first + record.tree
            uid = {"uid": f"copy-{number}"} if isinstance(record, OpenedRecord) else {}
            if number < num_trees:
                yield msgspec.structs.replace(record, tree=number, **uid)


def random_tree(like: Path, num_nodes: int, num_tokens: int, measures: Sequence[str]) -> Iterator[RunRecord]:
    """The records of one finished tree, always the same. Each node but the root has so many tokens."""
    reading = OpenedRun.open(like).reading
    assert reading is not None
    codec, rng = reading.codec, np.random.default_rng(0)
    above = _parents(rng, num_nodes)
    leaves = set(range(num_nodes)) - set(above)
    prompt = Segment("prompt", np.array(codec.encode(PROBLEM.question), np.int32))
    yield recording.opened(0, PROBLEM, prompt=[prompt], seed=0, codec=codec)
    for command, parent in enumerate(above):
        step = _step(rng, codec, num_tokens, measures=measures, is_leaf=command + 1 in leaves)
        yield recording.asked(0, command, [Grow(parent, until="step")])
        yield recording.grew(0, command, 0, step=step)
        yield recording.ended(0, command, Done(), num_steps=1)
    yield recording.shut(0, "done", len(leaves))


def _parents(rng: np.random.Generator, num_nodes: int) -> list[int]:
    """The parent of each node but the root."""
    found, depth = list[int](), [0]
    while len(depth) < num_nodes:
        parent = int(rng.integers(len(depth))) if rng.random() < FORK_SHARE else len(depth) - 1
        while depth[parent] >= MAX_DEPTH:
            parent = int(rng.integers(len(depth)))
        found.append(parent)
        depth.append(depth[parent] + 1)
    return found


def _step(rng: np.random.Generator, codec: Codec, num_tokens: int, *, measures: Sequence[str], is_leaf: bool) -> Step:
    segment = Segment(
        "sampled",
        rng.integers(FIRST_WORD, codec.vocab_size, num_tokens).astype(np.int32),
        logprobs=-rng.exponential(0.4, num_tokens).astype(np.float32),
        measures={name: rng.exponential(0.6, num_tokens).astype(np.float32) for name in measures},
        source=Origination("bench", logprobs="raw"),
        usage=Usage(1, num_tokens),
    )
    scores = (Score("answer", float(rng.random() < 0.5)),) if is_leaf else ()
    return Step((segment,), stop="answer" if is_leaf else None, scores=scores)
