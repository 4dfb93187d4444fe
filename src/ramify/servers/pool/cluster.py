"""Cluster: runs the engines of a pool on the nodes of a Ray cluster, one actor per member, each in its bundle.

It only places actors and forwards calls; `member_process.py` and `multi_node.py` do the work and know nothing of Ray.
Ray restarts no actor: a lost one is replaced by a new one in the same bundle. What this process started on the cluster
ends with it; a placement group made by a trainer stays.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeVar

from ramify.core.engine import Engine
from ramify.core.errors import ConfigError, EngineError
from ramify.edge.patience import PATIENCE, Patience
from ramify.edge.ray_cluster import ROOM_S, joined, library
from ramify.engines.fleet.placement import PlacementName
from ramify.engines.shipped import MODELS
from ramify.servers.home import log_folder
from ramify.servers.launch import Launch
from ramify.servers.member import Care
from ramify.servers.pool.config import PoolConfig
from ramify.servers.pool.engines import free_here
from ramify.servers.pool.member_process import MemberLost, MemberProcess
from ramify.servers.pool.members import ACTOR_ENVIRONMENT
from ramify.servers.pool.multi_node import Spread
from ramify.servers.pool.plan import (
    STRATEGY,
    EngineMember,
    EnginePlan,
    Landed,
    PoolPlan,
    actor_resources,
    bundles,
    nodes_of,
    plan,
)
from ramify.servers.process import GUARD_S
from ramify.servers.self_served import SelfServed
from ramify.servers.server_pool import Event, ServerPool

T = TypeVar("T")

KEEPS_GUARDS: Final = {"RAY_kill_child_processes_on_worker_exit": "0"}
"""Environment of the actors. Without it Ray kills a server's guard together with its actor, and the server's processes
are left running."""


def clustered(
    build: Callable[[str], Engine],
    config: PoolConfig,
    launch: Launch,
    *,
    placement: PlacementName = "prefix",
    patience: Patience = PATIENCE,
    care: Care | None = None,
) -> SelfServed:
    """The engines of a pool as the replicas of one engine. It joins the cluster when it connects; that raises
    `ConfigError` if Ray is missing or the engines do not fit, and `Unavailable` if no cluster answers."""

    async def pool(observe: Callable[[Event], None]) -> ServerPool:
        logs = log_folder(launch.config.logs)
        cluster = await _opened(config)
        return ServerPool(
            Spread(cluster.plan, cluster.members(_anywhere(launch), logs), close=cluster.close),
            count=len(cluster.plan.engines),
            probe=launch.probe,
            care=care or Care(start_s=launch.config.start_s),
            observe=observe,
        )

    return SelfServed(build, pool, placement=placement, patience=patience)


class Cluster:
    """The plan of a pool and the bundles held for it. Made by `opened`."""

    def __init__(self, plan: PoolPlan, placed: "Bundles", held: ExitStack) -> None:
        self.plan = plan
        self._bundles = placed
        self._held = held
        self._members: list[RayMember] = []

    @classmethod
    def opened(cls, config: PoolConfig) -> "Cluster":
        """Join the cluster, hold the bundles, and make the plan from where the bundles are and which ports are free
        there. Blocks for seconds. Raises `ConfigError` if Ray is missing or there is too little room (with
        the numbers), and `Unavailable` if no cluster answers."""
        ray = library()
        with ExitStack() as held:
            held.enter_context(joined(config.ray or "auto", None))
            group, first = held.enter_context(_group(ray, config))
            placed = Bundles(ray, group, actor_resources(config))
            landed = placed.landed()
            made = plan(config, nodes_of(landed, first=first), free=placed.free_among(landed))
            return cls(made, placed, held.pop_all())

    def members(self, launch: Launch, logs: Path) -> Callable[[EnginePlan, EngineMember], "RayMember"]:
        """A function that makes the member of an engine, not started yet."""

        def member(engine: EnginePlan, member: EngineMember) -> RayMember:
            made = RayMember(self._bundles, engine, member, launch, logs)
            self._members.append(made)
            return made

        return member

    def close(self) -> None:
        """End the actors, release the bundles and leave the cluster. Calling it again is harmless."""
        for member in self._members:
            member.end()
        self._held.close()


class Bundles:
    """The bundles of one placement group, by number."""

    def __init__(self, ray: Any, group: Any, resources: Mapping[str, float]) -> None:
        self.ray = ray
        self._group = group
        self._resources = dict(resources)

    def landed(self) -> tuple[Landed, ...]:
        """The node and card of each bundle."""
        return tuple(self._answers(*(self._seen(bundle) for bundle in range(self._group.bundle_count))))

    def free_among(self, landed: tuple[Landed, ...]) -> Callable[[str, int, int], int]:
        """`free_here`, run on the node in question."""
        bundle_on = {host: bundle for bundle, (host, _) in enumerate(landed)}

        def free(host: str, first: int, count: int) -> int:
            asked = self.ray.remote(free_here).options(num_cpus=0, **self._within(bundle_on[host]))
            return self._answers(asked.remote(host, first, count))[0]

        return free

    def actor(self, bundle: int | None, *arguments: Any) -> Any:
        """A `MemberProcess` as an actor in a bundle."""
        options = {"max_restarts": 0, "max_task_retries": 0, **self._resources, **self._within(bundle)}
        environment = {"env_vars": {**ACTOR_ENVIRONMENT, **KEEPS_GUARDS}}
        return self.ray.remote(MemberProcess).options(runtime_env=environment, **options).remote(*arguments)

    def _seen(self, bundle: int) -> Any:
        has_card = bool(self._resources["num_gpus"])
        return self.ray.remote(_lies).options(**self._resources, **self._within(bundle)).remote(bundle, has_card)

    def _within(self, bundle: int | None) -> Mapping[str, Any]:
        from ray.util.scheduling_strategies import (  # pyright: ignore[reportMissingImports]
            PlacementGroupSchedulingStrategy,
        )

        assert bundle is not None, "a plan of nodes that have bundles"
        return {"scheduling_strategy": PlacementGroupSchedulingStrategy(self._group, bundle)}

    def _answers(self, *asked: Any) -> list[Any]:
        """The nodes' answers. Raises the error raised there, or `EngineError` for an error of Ray itself."""
        errors = self.ray.exceptions
        try:
            return self.ray.get(list(asked), timeout=ROOM_S)
        except errors.RayTaskError as error:
            raise error.cause from None
        except errors.RayError as error:
            raise EngineError("no_nodes", f"the nodes of the cluster do not answer: {_line(error)}") from error


class RayMember:
    """A `MemberProcess` that is an actor. It is created at its first start, and again at the first start after it was
    lost."""

    def __init__(self, placed: Bundles, engine: EnginePlan, member: EngineMember, launch: Launch, logs: Path) -> None:
        self.name = f"node {member.rank} of engine {engine.index} on {member.address.host}"
        self._bundles = placed
        self._bundle = member.bundle
        self._arguments = (engine, member, launch, logs)
        self._actor: Any = None
        self._fault = "it was not started"

    async def start(self) -> int:
        if self._actor is None:
            self._actor = self._bundles.actor(self._bundle, *self._arguments)
        return await self._answered(self._actor.start.remote(), deadline_s=ROOM_S)

    async def wait(self) -> int:
        return await self._answered(self._placed.wait.remote())

    async def listens(self) -> bool:
        return await self._answered(self._placed.listens.remote(), deadline_s=GUARD_S)

    async def last_words(self) -> str:
        return await self._answered(self._placed.last_words.remote(), deadline_s=GUARD_S)

    async def stop(self, grace_s: float) -> None:
        # The actor finishes a running start before it stops.
        await self._answered(self._placed.stop.remote(grace_s), deadline_s=grace_s + 3 * GUARD_S)

    def kill(self) -> None:
        if self._actor is not None:
            self._actor.kill.remote()

    def end(self) -> None:
        """End the actor, whatever it is doing. Calling it again is harmless."""
        actor, self._actor = self._actor, None
        if actor is not None:
            self._bundles.ray.kill(actor, no_restart=True)

    @property
    def _placed(self) -> Any:
        if self._actor is None:
            raise MemberLost(self._fault)
        return self._actor

    async def _answered(self, answer: Awaitable[T], *, deadline_s: float | None = None) -> T:
        """The actor's answer, or the error it raised. An error of Ray itself, or no answer in time, means that the
        actor is lost."""
        errors = self._bundles.ray.exceptions
        try:
            async with asyncio.timeout(deadline_s):
                return await asyncio.shield(asyncio.ensure_future(answer))
        except errors.RayTaskError as error:
            raise error.cause from None
        except (errors.RayError, TimeoutError) as error:
            self._fault = _line(error) or f"no answer in {deadline_s:g} s"
            self.end()
            raise MemberLost(self._fault) from error


async def _opened(config: PoolConfig) -> Cluster:
    opening = asyncio.ensure_future(asyncio.to_thread(Cluster.opened, config))
    try:
        return await asyncio.shield(opening)
    except asyncio.CancelledError:
        opening.add_done_callback(_close_unwanted)
        raise


def _close_unwanted(opening: "asyncio.Future[Cluster]") -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()


@contextmanager
def _group(ray: Any, config: PoolConfig) -> Iterator[tuple[Any, int]]:
    """The placement group, and the position of the engines' first bundle, sorted by node and card. The group is the
    trainer's, or a new one with the engines' cards only. Raises `ConfigError` if there is no such group, or no room for
    a new one."""
    from ray.util import placement_group, remove_placement_group  # pyright: ignore[reportMissingImports]

    if config.placement_group is not None:
        yield _trainers(config.placement_group, len(bundles(config))), config.engine_offset
        return
    if config.colocate:
        raise ConfigError(
            "pool.colocate on a cluster: the trainer's cards are in a placement group that it made; name it as "
            "pool.placement_group"
        )
    needed = bundles(replace(config, num_trainer_gpus=0))
    _check_room(ray, needed)
    group = placement_group(list(map(dict, needed)), strategy=STRATEGY)
    try:
        if not group.wait(ROOM_S):
            raise ConfigError(
                f"pool: the cluster has no room for {len(needed)} bundles of {dict(needed[0])!r} in {ROOM_S:g} s: "
                "others use it"
            )
        yield group, 0
    finally:
        remove_placement_group(group)


def _trainers(name: str, num_bundles: int) -> Any:
    from ray.util import get_placement_group  # pyright: ignore[reportMissingImports]

    try:
        group: Any = get_placement_group(name)
    except ValueError:
        raise ConfigError(
            f"pool.placement_group = {name!r}: there is none of that name in this namespace; make it before the service"
        ) from None
    if group.bundle_count < num_bundles:
        raise ConfigError(
            f"pool.placement_group = {name!r} has {group.bundle_count} bundles, and trainer and engines need "
            f"{num_bundles}, a card each"
        )
    return group


def _check_room(ray: Any, needed: tuple[Mapping[str, float], ...]) -> None:
    has = ray.cluster_resources()
    for name in needed[0]:
        total = sum(bundle[name] for bundle in needed)
        if total > has.get(name, 0):
            raise ConfigError(f"pool: the engines need {total:g} {name} and the cluster has {has.get(name, 0):g}")


def _lies(bundle: int, has_card: bool) -> Landed:
    """Runs in a bundle: its node and card. A bundle without a card gives its own number as the card."""
    ray = library()
    host = ray.util.get_node_ip_address()
    cards = [str(card) for card in ray.get_gpu_ids()] if has_card else [str(bundle)]
    if len(cards) != 1 or not cards[0].isdecimal():
        raise ConfigError(f"pool: the cards of a bundle on {host} are {cards!r}: one is needed, by its number")
    return host, int(cards[0])


def _anywhere(launch: Launch) -> Launch:
    """`launch` in a form that works on any node: a folder by its absolute path, and a served name that does not depend
    on the path."""
    model = launch.model if launch.model in MODELS else launch.path
    return replace(launch, model=model, served_name=launch.name)


def _line(error: BaseException) -> str:
    return str(error).partition("\n")[0]
