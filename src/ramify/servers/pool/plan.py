"""Plan: the cards, nodes and ports of a pool's engines, and the addresses that get requests.

Opens no socket and asks no cluster: the free ports and the placement of the bundles are passed in, so the same inputs
give the same plan. `engines.py` carries out a plan on one machine, `cluster.py` on several. Invariant: no two members
of a plan share a card, or a port of one node, including the ports for a member's process groups.
"""

import ipaddress
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ramify.core.errors import ConfigError, ContractError
from ramify.servers.pool.config import PoolConfig
from ramify.servers.ports import BLOCK, Address

STRATEGY: Final = "PACK"
"""Strategy of a placement group: as few nodes as possible (THUDM/slime: slime/ray/placement_group.py)."""
CPUS_PER_BUNDLE: Final = 1

Free = Callable[[str, int, int], int]
"""(host, from, count) -> the first of `count` consecutive ports, `from` or above, that are free on that host."""
Landed = tuple[str, int]
"""(node, card) of one bundle of a placement group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolNode:
    """One machine, and the cards that engines may use there."""

    host: str
    """Address at which other nodes reach it."""
    gpus: tuple[int, ...] = ()
    """Its cards, by system number."""
    bundles: tuple[int, ...] = ()
    """The bundle of each of `gpus`; () = there is no placement group."""

    def __post_init__(self) -> None:
        if self.host in ("", "0.0.0.0", "::"):
            raise ConfigError(f"node {self.host!r}: name the address that other nodes use")
        if len(set(self.gpus)) < len(self.gpus) or min(self.gpus, default=0) < 0:
            raise ConfigError(f"node {self.host!r}: gpus = {self.gpus!r}, each at least 0 and named once")
        if self.bundles and len(self.bundles) != len(self.gpus):
            raise ConfigError(f"node {self.host!r}: {len(self.bundles)} bundles for {len(self.gpus)} gpus, one each")


Node = PoolNode
"""The old name; kept for one version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineMember:
    """One process of an engine: the whole engine, or its part on one node."""

    engine: int
    rank: int
    """Rank of its node in the engine. Rank 0 is the head, the only one that gets requests."""
    gpus: tuple[int, ...]
    address: Address
    """Where it listens, and the block of ports for its process groups."""
    bundle: int | None
    """The bundle that its actor runs in; None = there is no placement group."""

    @property
    def is_head(self) -> bool:
        return self.rank == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginePlan:
    """One engine."""

    index: int
    members: tuple[EngineMember, ...]
    """By rank."""
    data_parallel: int = 1

    @property
    def head(self) -> EngineMember:
        return self.members[0]

    @property
    def num_gpus(self) -> int:
        return sum(len(member.gpus) for member in self.members)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolPlan:
    """All engines of a pool."""

    engines: tuple[EnginePlan, ...]

    @property
    def members(self) -> tuple[EngineMember, ...]:
        return tuple(member for engine in self.engines for member in engine.members)

    @property
    def heads(self) -> tuple[str, ...]:
        """The addresses that get requests: node 0 of each engine."""
        return tuple(engine.head.address.url for engine in self.engines)


def bundles(config: PoolConfig) -> tuple[Mapping[str, float], ...]:
    """The bundles to ask for in a placement group: one card each, the trainer's first. The strategy is `STRATEGY`.
    Engines without cards get one CPU each."""
    if config.num_cpu_engines:
        return ({"CPU": CPUS_PER_BUNDLE},) * config.num_cpu_engines
    num_cards = max(config.num_trainer_gpus, config.engine_offset + config.num_gpus)
    return ({"CPU": CPUS_PER_BUNDLE, "GPU": 1},) * num_cards


def actor_resources(config: PoolConfig) -> Mapping[str, float]:
    """The resources that the actor of one member asks Ray for."""
    if config.num_cpu_engines:
        return {"num_cpus": CPUS_PER_BUNDLE, "num_gpus": 0}
    return {"num_cpus": config.gpu_fraction, "num_gpus": config.gpu_fraction}


def bundle_order(landed: Sequence[Landed]) -> tuple[int, ...]:
    """The bundles sorted by (node, card), so that neighbours are on one node. `landed` is in the group's order. The
    first `num_trainer_gpus` of the result are the trainer's."""
    if len(set(landed)) < len(landed):
        twice = next(place for place in landed if landed.count(place) > 1)
        raise ConfigError(f"two bundles lie on card {twice[1]} of {twice[0]}: ask for a whole GPU a bundle")
    return tuple(sorted(range(len(landed)), key=lambda bundle: (_place(landed[bundle][0]), landed[bundle][1])))


def nodes_of(landed: Sequence[Landed], *, first: int = 0) -> tuple[PoolNode, ...]:
    """The nodes with the bundles from position `first` on in `bundle_order`; `first` is `config.engine_offset`."""
    by_host: dict[str, list[int]] = defaultdict(list)
    for bundle in bundle_order(landed)[first:]:
        by_host[landed[bundle][0]].append(bundle)
    return tuple(
        PoolNode(host=host, gpus=tuple(landed[bundle][1] for bundle in own), bundles=tuple(own))
        for host, own in by_host.items()
    )


def anything(host: str, first: int, count: int) -> int:
    """Treat every port as free."""
    return first


def plan(config: PoolConfig, nodes: Sequence[PoolNode], *, free: Free = anything) -> PoolPlan:
    """Place each engine and give it cards and ports. Raises `ConfigError` if `nodes` or their ports do not suffice."""
    _check_nodes(config, nodes)
    ports = _Ports(config, free)
    slots = list(_cpu_slots(config, nodes) if config.num_cpu_engines else _slots(config, nodes))
    num_slots = config.num_engines * config.nodes_per_engine
    if len(slots) < num_slots:
        raise ConfigError(
            f"pool: {config.num_engines} engines of {config.num_gpus_per_engine} gpus need {num_slots} times "
            f"{config.gpus_per_member} gpus on a node; there is room for {len(slots)} on "
            f"{', '.join(f'{node.host} ({len(node.gpus)})' for node in nodes)}"
        )
    engines = tuple(
        EnginePlan(
            index=index,
            members=tuple(
                _member(config, ports, slots[index * config.nodes_per_engine + rank], engine=index, rank=rank)
                for rank in range(config.nodes_per_engine)
            ),
            data_parallel=config.data_parallel,
        )
        for index in range(config.num_engines)
    )
    return PoolPlan(engines=engines)


_Slot = tuple[str, tuple[int, ...], int | None]
"""(host, cards, bundle) of one member."""


class _Ports:
    """Hands out the ports of every node, in order, none twice."""

    def __init__(self, config: PoolConfig, free: Free) -> None:
        self._config = config
        self._free = free
        self._next: dict[str, int] = {}

    def take(self, host: str, count: int = 1) -> int:
        """The first of `count` consecutive ports. Raises `ConfigError` if none are left."""
        start = self._next.get(host, self._config.first_port)
        first = self._free(host, start, count)
        if first < start:
            raise ContractError(f"free ports of {host} from {start} on were asked for, and {first} was answered")
        if first + count - 1 > self._config.last_port:
            raise ConfigError(
                f"pool: no {count} free ports beside each other on {host} from {start} to last_port = "
                f"{self._config.last_port}: lower first_port = {self._config.first_port}, or free some"
            )
        self._next[host] = first + count
        return first


def _check_nodes(config: PoolConfig, nodes: Sequence[PoolNode]) -> None:
    hosts = [node.host for node in nodes]
    if not nodes or len(set(hosts)) < len(hosts):
        raise ConfigError(f"pool: nodes = {hosts!r}: name at least one, each once")
    for node in nodes:
        if config.num_gpus and len(node.gpus) > config.num_gpus_per_node:
            raise ConfigError(
                f"pool: {node.host} has {len(node.gpus)} gpus for engines and num_gpus_per_node = "
                f"{config.num_gpus_per_node}: set it to what a node has"
            )


def _slots(config: PoolConfig, nodes: Sequence[PoolNode]) -> Iterator[_Slot]:
    """Groups of neighbouring cards on one node, one group per member."""
    size = config.gpus_per_member
    for node in nodes:
        for first in range(0, len(node.gpus) - size + 1, size):
            yield node.host, node.gpus[first : first + size], node.bundles[first] if node.bundles else None


def _cpu_slots(config: PoolConfig, nodes: Sequence[PoolNode]) -> Iterator[_Slot]:
    """Engines without cards: in their bundles if there are any, else round robin over the nodes."""
    if any(node.bundles for node in nodes):
        yield from ((node.host, (), bundle) for node in nodes for bundle in node.bundles)
    else:
        yield from ((nodes[index % len(nodes)].host, (), None) for index in range(config.num_cpu_engines))


def _member(config: PoolConfig, ports: _Ports, slot: _Slot, *, engine: int, rank: int) -> EngineMember:
    host, gpus, bundle = slot
    port = ports.take(host)
    block = ports.take(host, BLOCK + config.data_parallel)
    return EngineMember(engine=engine, rank=rank, gpus=gpus, address=Address(host, port, block), bundle=bundle)


def _place(host: str) -> tuple[int, tuple[tuple[int, int | str], ...]]:
    """Sort key of a node: IP addresses by value, then names, with the numbers in a name compared as numbers."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        parts = re.findall(r"\d+|\D+", host)
        return 9, tuple((0, int(part)) if part.isdecimal() else (1, part) for part in parts)
    return address.version, ((0, int(address)),)
