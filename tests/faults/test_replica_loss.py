"""A replica that is lost in the middle of a run costs time and no tree."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from tests.engines.breakable import Breakable
from tests.faults.grown import shape
from tests.faults.replica_server import ReplicaProcess, Wire

from ramify.config.configure import resolve
from ramify.config.run_config import RunConfig
from ramify.core.engine import Engine
from ramify.core.tree import Tree
from ramify.engines.fleet.replicas import Replicas
from ramify.runner.build import prepared_run
from ramify.runner.events import Event, TreeClosed
from ramify.runner.run import Run
from ramify.testing.clock import run_virtual
from ramify.testing.planned_faults import Delay
from ramify.testing.policies import RandomAgent
from ramify.testing.scripted import Scripted

NUM_TREES = 8
PRESETS = ("offline", *(pytest.param(preset, marks=pytest.mark.slow) for preset in ("chains", "arpo")))


@dataclass
class Grown:
    """What a run came to."""

    trees: dict[str, Tree]
    num_failed: int
    num_retries: int
    """Tries that faults have cost."""
    num_waits: int
    """Turns that were asked for again at no cost."""

    @property
    def shapes(self) -> dict[str, Any]:
        return {uid: shape(tree) for uid, tree in self.trees.items()}


def config(preset: str) -> RunConfig:
    flags = {"prompts": NUM_TREES, "seed": 7, "engine.name": "scripted", "growth.max_response_tokens": 200}
    return resolve(preset=preset, flags=flags).config


async def grown(preset: str, engine: Engine, *, meanwhile: Callable[[], Awaitable[None]] | None = None) -> Grown:
    """One run, and what goes on beside it. The engine is closed."""
    trees: dict[str, Tree] = {}

    def keep(event: Event) -> None:
        if isinstance(event, TreeClosed):
            trees[event.tree.problem.uid] = event.tree

    run = Run(prepared_run(config(preset), engine=engine))
    try:
        beside = asyncio.ensure_future(meanwhile()) if meanwhile is not None else None
        report = await run.grow([keep])
        if beside is not None:
            await asyncio.wait_for(beside, 60)
    finally:
        await run.close()
    assert asyncio.all_tasks() == {asyncio.current_task()}
    retrying = run.prepared.engines["policy"]
    return Grown(trees, report.failed_leaves, retrying.num_retries, retrying.num_waits)


async def until(is_so: Callable[[], bool], *, look_s: float = 0.25) -> None:
    async with asyncio.timeout(60):
        while not is_so():  # noqa: ASYNC110 - what is waited for tells nobody
            await asyncio.sleep(look_s)


def undisturbed(preset: str) -> Grown:
    return run_virtual(grown(preset, Scripted()))


# -- in virtual time --------------------------------------------------------------------------------------------------


def slow_replicas(number: int) -> list[Breakable]:
    return [Breakable(RandomAgent(), delay=Delay(call_s=1.0, token_s=0.05)) for _ in range(number)]


@pytest.mark.parametrize(
    ("preset", "reason"),
    [("chains", "timeout"), ("offline", "unreachable"), ("offline", "disconnected"), ("arpo", "unreachable")],
)
def test_a_run_that_loses_one_of_two_replicas_grows_the_same_trees(preset: str, reason: str) -> None:
    engines = slow_replicas(2)
    replicas = Replicas(engines)
    held = 0

    async def lose() -> None:
        nonlocal held
        await until(lambda: engines[0].inner.num_calls > 40)
        held = replicas.stats[0].in_flight
        engines[0].die(reason)

    lossy = run_virtual(grown(preset, replicas, meanwhile=lose))
    assert lossy.shapes == undisturbed(preset).shapes
    assert (lossy.num_failed, lossy.num_retries) == (0, 0)
    assert 0 < lossy.num_waits <= held + 1, "what it had, and the one that finds it gone"
    assert [stats.state for stats in replicas.stats] == ["suspect", "ready"]


@pytest.mark.parametrize("preset", PRESETS)
def test_a_run_whose_replicas_all_go_for_a_while_grows_the_same_trees(preset: str) -> None:
    engines = slow_replicas(2)
    replicas = Replicas(engines)

    async def lose() -> None:
        await until(lambda: engines[0].inner.num_calls > 40)
        for engine in engines:
            engine.die()
        await asyncio.sleep(100)
        for engine in engines:
            engine.come_back()

    lossy = run_virtual(grown(preset, replicas, meanwhile=lose))
    assert lossy.shapes == undisturbed(preset).shapes
    assert (lossy.num_failed, lossy.num_retries) == (0, 0)


@pytest.mark.parametrize("preset", PRESETS)
def test_a_run_whose_replicas_come_and_go_by_turns_grows_the_same_trees(preset: str) -> None:
    engines = slow_replicas(4)
    replicas = Replicas(engines)

    async def come_and_go() -> None:
        for turn in range(6):
            await asyncio.sleep(5)
            engines[turn % 4].die()
            engines[(turn - 2) % 4].come_back()

    lossy = run_virtual(grown(preset, replicas, meanwhile=come_and_go))
    assert lossy.shapes == undisturbed(preset).shapes
    assert lossy.num_failed == 0


def test_a_run_whose_weights_change_beside_it_hears_of_no_old_ones_again() -> None:
    engines = [Breakable(RandomAgent(), delay=Delay(call_s=1.0), version=0) for _ in range(2)]
    replicas = Replicas(engines)

    async def train() -> None:
        await until(lambda: engines[0].inner.num_calls > 20)
        await replicas.update_weights("step-1", 1)
        engines[0].die()
        engines[0].come_back(version=0)

    lossy = run_virtual(grown("offline", replicas, meanwhile=train))
    assert lossy.num_failed == 0
    assert engines[0].loaded == [("step-1", 1)] * 2
    for tree in lossy.trees.values():
        for leaf in tree.leaves():
            versions = [s.version for node in tree.path(leaf) for s in tree.segments(node) if s.is_sampled]
            assert versions == sorted(versions, key=lambda version: version or 0)


# -- with processes ---------------------------------------------------------------------------------------------------


async def killed_in_the_middle(preset: str, processes: Sequence[ReplicaProcess]) -> tuple[Grown, Replicas]:
    """Kill the first server when it has answered 20 requests, start it anew on another port."""
    replicas = Replicas([Wire(process.url) for process in processes])
    fresh: list[ReplicaProcess] = []

    async def kill() -> None:
        await until(lambda: replicas.stats[0].num_requests > 20 and replicas.stats[0].in_flight > 1, look_s=0.002)
        await processes[0].kill()
        fresh.append(await ReplicaProcess.started())
        await replicas.replace(0, Wire(fresh[0].url))
        await until(lambda: replicas.stats[0].state == "ready", look_s=0.002)

    try:
        return await grown(preset, replicas, meanwhile=kill), replicas
    finally:
        for process in fresh:
            await process.kill()


@pytest.mark.covers("S3.3")
@pytest.mark.parametrize("preset", ["offline", pytest.param("arpo", marks=pytest.mark.slow)])
def test_a_server_killed_for_real_in_the_middle_of_a_run_costs_no_tree(preset: str) -> None:
    async def main() -> tuple[Grown, Replicas]:
        processes = await asyncio.gather(ReplicaProcess.started(), ReplicaProcess.started())
        try:
            return await killed_in_the_middle(preset, processes)
        finally:
            for process in processes:
                await process.kill()

    lossy, replicas = asyncio.run(main())
    assert lossy.shapes == undisturbed(preset).shapes
    assert (lossy.num_failed, lossy.num_retries) == (0, 0)
    assert replicas.stats[0].num_failed > 0
