"""Sandboxes are killed, steps hang, die and take too much, sessions are evicted; what must hold of a run holds.

In real time, with the real tool `python` behind all its walls. Where a killed or evicted sandbox is replayed, its steps
must show what they showed: so a kill may cost time and calls made again, and nothing that is in a tree.
"""

import asyncio
import os
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.faults.chaos import KINDS, Chaos, EngineFaults, ShakyJudge
from tests.faults.coding import DEEDS, MEMORY_BYTES, KilledPython, Remembers, call_faults, children, coder, name_of
from tests.faults.grown import Grown, common, faults, grown, shape
from tests.runner.parts import Small

from ramify.config.configure import resolve
from ramify.config.run_config import RunConfig
from ramify.core.problem import Problem
from ramify.formats.arpo import arpo
from ramify.store.replay import Replayed, replay
from ramify.testing.planned_faults import FaultKind
from ramify.testing.scripted import Scripted
from ramify.tools.python import Python

IN_TIME: tuple[FaultKind, ...] = tuple(kind for kind in KINDS if kind != "hang")
"""Ways to fail that nobody has to wait a minute for."""
CROWDED: dict[str, Any] = {"max_nodes": 6, "max_sandboxes": 6}
"""States and sandboxes are evicted all the time."""
WAIT_S = 60.0


def config(seed: int, num_trees: int) -> RunConfig:
    """Two chains and two expansions a tree."""
    return resolve(
        preset="offline",
        flags={
            "prompts": num_trees,
            "seed": seed,
            "engine.name": "scripted",
            "strategy.options.initial_rollouts": 2,
            "strategy.options.expansion_iterations": 1,
            "growth.max_response_tokens": 8000,
            "tools.max_parked": 24,
            "max_trees": 8,
            "max_failed_share": 1.0,
        },
    ).config


def held() -> tuple[Counter[str], int]:
    """What this process holds open, by kind, and how many children it has."""
    kinds: Counter[str] = Counter()
    for path in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # The listing's own is gone.
            kinds[str(path.readlink()).partition(":")[0]] += 1
    return kinds, len(children(os.getpid()))


def looks() -> list[str]:
    """What the kernel says of each child of this process: its name, its state, its times."""
    found: list[str] = []
    for pid in children(os.getpid()):
        with suppress(OSError):  # It is gone by now.
            found.append(Path(f"/proc/{pid}/stat").read_text())
    return found


async def no_more_children_than(number: int) -> None:
    """Ended sandboxes are gone in a moment; on a busy machine it may be a long one."""
    end = time.monotonic() + WAIT_S
    while len(children(os.getpid())) > number:
        if time.monotonic() > end:
            raise AssertionError(f"more than {number} children after {WAIT_S:g} s: {looks()}")
        await asyncio.sleep(0.02)


def coded(
    chaos: Chaos, num_trees: int, *, known: dict[int, Replayed] | None = None, **options: Any
) -> tuple[Grown, KilledPython]:
    """A run of `coder` that must leave nothing behind; a session beside it outlives it."""
    problems = [Problem(f"p{number}", f"problem {number}") for number in range(num_trees)]
    python = Python(preload=(), timeout_s=3.0, memory_bytes=MEMORY_BYTES, **options)
    tool = KilledPython(python, chaos)
    task = Small(format=arpo({"python": "python"}), tools=(tool,), judges=(ShakyJudge(chaos, Remembers()),))
    engine = Scripted(coder(chaos.seed), faults=EngineFaults(chaos, problems, IN_TIME).planned())

    async def main() -> Grown:
        before = held()
        beside = await python.open(Problem("beside", "a session of its own"))
        try:
            found = await grown(config(chaos.seed, num_trees), task=task, engine=engine, problems=problems, known=known)
            assert not tool.open_sessions
            await no_more_children_than(before[1] + 1 + python.num_spares)
        finally:
            await beside.close()
        assert held() == before
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return found

    return asyncio.run(main()), tool


@pytest.mark.slow
@pytest.mark.parametrize(("siblings", "num_trees"), [("together", 110), ("apart", 30)])
def test_a_run_whose_sandboxes_are_killed_and_evicted_is_sound(siblings: str, num_trees: int) -> None:
    chaos = Chaos(5)
    print(f"siblings {siblings}, seed {chaos.seed}")  # noqa: T201 - what to repeat a failure with
    found, tool = coded(chaos, num_trees, siblings=siblings, **CROWDED)
    assert [*faults(found)] == []
    assert len(tool.killed) > num_trees / 40
    assert found.run.toolbox.metrics()["tools/replayed_calls"] > 0

    branches = [tree.branch(leaf) for tree in found.trees.values() for leaf in tree.leaves()]
    assert [fault for branch in branches for fault in call_faults(branch)] == []
    done = {name_of(call) for branch in branches for call in branch.tool_calls}
    assert done == DEEDS.keys() or num_trees < 100
    rewards = {tree.reward(leaf) for tree in found.trees.values() for leaf in tree.leaves()}
    assert rewards == {1.0, None}


@pytest.mark.slow
def test_branches_that_nothing_struck_are_those_of_a_run_in_which_nothing_fails() -> None:
    chaos, num_trees = Chaos(6), 40
    print(f"seed {chaos.seed}")  # noqa: T201 - what to repeat a failure with
    found, tool = coded(chaos, num_trees, **CROWDED)
    calm, calm_tool = coded(Chaos(chaos.seed, share=0.0), num_trees)
    assert tool.killed and not calm_tool.killed
    for uid in found.trees.keys() - chaos.problems:
        assert shape(found.trees[uid]) == shape(calm.trees[uid]), f"{uid} was not struck and differs"
    pairs = [*common(found, calm, has_struck=chaos.has_struck)]
    assert len(pairs) > num_trees
    assert [pair for pair in pairs if not pair[0].is_like(pair[1])] == []


@pytest.mark.slow
def test_such_a_run_cut_off_anywhere_replays_its_sessions_and_goes_on_to_the_same_trees() -> None:
    seed, num_trees = 7, 20
    print(f"seed {seed}")  # noqa: T201 - what to repeat a failure with
    whole, _ = coded(Chaos(seed), num_trees, **CROWDED)
    for share in (0.3, 0.6, 0.9):
        records = whole.store.records[: int(share * len(whole.store.records))]
        known = replay(records, whole.run.prepared.codec, whole.run.prepared.rules)
        done = {again.tree.problem.uid: again.tree for again in known.values() if again.is_closed}
        rest, _ = coded(Chaos(seed), num_trees, known=known, **CROWDED)
        assert rest.run.toolbox.metrics()["tools/replayed_calls"] > 0
        assert set(done) | set(rest.trees) == set(whole.trees)
        for uid, tree in {**done, **rest.trees}.items():
            assert shape(tree) == shape(whole.trees[uid]), f"{uid} differs after a cut at {share}"
