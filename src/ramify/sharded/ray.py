"""Ray: a sharded run whose workers are Ray actors, on a cluster that is started here or joined.

This file only places actors and forwards calls; `workers` and `run` do the work and do not import Ray. Ray does not
restart an actor: a dead one is replaced by a new actor, which reads the journal. What this process started on the
cluster ends with it, and nothing else does.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, TypeVar

from ramify.config.configure import from_toml
from ramify.config.run_config import RunConfig
from ramify.core.errors import ConfigError
from ramify.core.problem import Problem
from ramify.core.shard import Portion
from ramify.edge.ray_cluster import ROOM_S, ClusterWatch, joined, library, num_cpus
from ramify.runner import loop
from ramify.runner.build import problems_of
from ramify.runner.folder import checked_start, settle_shards
from ramify.runner.inputs import remarks
from ramify.runner.permission import check_permitted, unsigned_reason
from ramify.runner.report import RunReport
from ramify.runner.tally import Tally
from ramify.sharded.run import RESTARTS, RestartPolicy, ShardedRun
from ramify.sharded.shareable import check_shareable
from ramify.sharded.workers import ShardEnd, ShardWorker, Worker, WorkerDied, WorkerInfo
from ramify.store.layout import damaged_layout
from ramify.store.shards import ShardedFolder
from ramify.store.store import refuse_occupied

T = TypeVar("T")
Show = Callable[[Tally], object]
Say = Callable[[str], object]


def rollout(
    config: RunConfig,
    out: Path,
    *,
    num_workers: int | None = None,
    address: str | None = None,
    show: Show = lambda tally: None,
    say: Say = lambda text: None,
    restarts: RestartPolicy = RESTARTS,
) -> RunReport:
    """Grow a run into the new folder `out` with Ray actors, one per shard.

    `address` of a running cluster; None = start one here, and stop it at the end. `num_workers` None = the cluster's
    number of CPUs. Raises `ConfigError` before anything starts, `Unavailable` if there is no such cluster, and
    what `ShardedRun.grow` raises.
    """
    out = out.absolute()
    check_shareable(config)
    library()
    refuse_occupied(out)
    header, text, problems = loop.run(checked_start(config))
    with joined(address, num_workers):
        number = min(num_workers or num_cpus(), config.prompts)
        with (
            reserved(number) as launcher,
            closing(ShardedFolder.create(out, header, text, num_shards=number)) as folder,
        ):
            if (told := unsigned_reason()) is not None:
                say(told)
            return _grown(folder, problems, launcher, num_workers=number, show=show, say=say, restarts=restarts)


def resume(
    path: Path,
    *,
    num_workers: int | None = None,
    address: str | None = None,
    show: Show = lambda tally: None,
    say: Say = lambda text: None,
    restarts: RestartPolicy = RESTARTS,
    is_trusted: bool = False,
    accept: Collection[str] = (),
) -> RunReport:
    """Continue a sharded run with Ray actors, `num_workers` shards at a time. Arguments as in `rollout` and in
    `runner.folder.resume`, whose refusals it has."""
    if (told := check_permitted(path, is_trusted=is_trusted)) is not None:
        say(told)
    library()
    with closing(ShardedFolder.open(path.absolute())) as folder, joined(address, num_workers):
        config = from_toml(folder.config)
        problems = problems_of(config)
        settle_shards(folder, config, problems, accept=accept)
        for remark in [*damaged_layout(folder.path), *remarks(folder.header)]:
            say(remark)
        number = min(num_workers or num_cpus(), len(folder.shards))
        with reserved(number) as launcher:
            return _grown(folder, problems, launcher, num_workers=number, show=show, say=say, restarts=restarts)


def _grown(folder: ShardedFolder, problems: Sequence[Problem], launcher: "RayLauncher", **options: Any) -> RunReport:
    """Grow all shards. `options`: those of `ShardedRun`."""
    return loop.run(ShardedRun(folder, problems, launcher, lost=launcher.watch.lost, **options).grow())


# -- workers ----------------------------------------------------------------------------------------------------------


@contextmanager
def reserved(number: int) -> Iterator["RayLauncher"]:
    """Reserve room for `number` workers of one CPU each, spread over the machines of the cluster.

    Raises `ConfigError` if the cluster has too few CPUs, or if others use them.
    """
    ray = library()
    from ray.util import placement_group, remove_placement_group  # pyright: ignore[reportMissingImports]

    if number > num_cpus():
        raise ConfigError(
            f"{number} workers need a CPU each and the cluster has {num_cpus()}; ask for fewer: --workers"
        )
    group = placement_group([{"CPU": 1}] * number, strategy="SPREAD")
    watch = ClusterWatch()
    try:
        if not group.wait(ROOM_S):
            raise ConfigError(
                f"the cluster gave no room for {number} workers within {ROOM_S:g} s, others use it: try fewer --workers"
            )
        yield RayLauncher(ray, group, watch)
    finally:
        if watch.is_there():
            remove_placement_group(group)


class RayLauncher:
    """Starts workers as actors, each in its slot of a placement group. `watch` says whether the cluster is there."""

    def __init__(self, ray: Any, group: Any, watch: ClusterWatch) -> None:
        self.watch = watch
        self._ray = ray
        self._group = group

    async def start(self, path: Path, portion: Portion, *, slot: int, num_at_once: int) -> Worker:
        from ray.util.scheduling_strategies import (  # pyright: ignore[reportMissingImports]
            PlacementGroupSchedulingStrategy,
        )

        place = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=slot)
        options = {"num_cpus": 1, "max_restarts": 0, "max_task_retries": 0, "scheduling_strategy": place}
        actor = self._ray.remote(ShardWorker).options(**options)
        return RayWorker(self._ray, actor.remote(str(path), portion, num_at_once))

    def end(self, worker: Worker) -> None:
        if isinstance(worker, RayWorker) and self.watch.is_there():
            worker.end()


class RayWorker:
    """A `ShardWorker` in a Ray actor."""

    def __init__(self, ray: Any, actor: Any) -> None:
        self._ray = ray
        self._actor = actor

    async def meet(self, token: str) -> WorkerInfo:
        return await self._answered(self._actor.meet.remote(token))

    async def grow(self) -> ShardEnd:
        return await self._answered(self._actor.grow.remote())

    async def tally(self) -> Tally:
        return await self._answered(self._actor.tally.remote())

    async def stop(self) -> None:
        await self._answered(self._actor.stop.remote())

    def end(self) -> None:
        self._ray.kill(self._actor, no_restart=True)

    async def _answered(self, answer: Awaitable[T]) -> T:
        """The actor's answer. Raises `WorkerDied` if Ray reports that the actor is gone or cannot be reached."""
        errors = self._ray.exceptions
        gone = (errors.RayActorError, errors.RaySystemError, errors.NodeDiedError, errors.ObjectLostError)
        answering = asyncio.ensure_future(answer)
        answering.add_done_callback(_read)
        try:
            return await asyncio.shield(answering)
        except gone as error:
            raise WorkerDied(str(error).partition("\n")[0]) from error


def _read(answering: asyncio.Future[Any]) -> None:
    """Read how a call ended, also when nobody waits for it any more: asyncio would report it with a traceback."""
    if not answering.cancelled():
        answering.exception()
