"""Config: the cards, nodes and ports of the engines that a service starts. Values and their checks."""

import math
from dataclasses import dataclass
from typing import Literal

from ramify.core.errors import ConfigError

RouterKind = Literal["none", "own", "external"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolConfig:
    """How many engines there are and what each gets. The run's `engine` says what they run."""

    num_gpus: int = 0
    """All cards of all engines together."""
    num_gpus_per_engine: int = 1
    """Cards of one engine."""
    num_gpus_per_node: int = 8
    """Cards per node. An engine with more cards spans several whole nodes (THUDM/slime: slime/utils/arguments.py)."""
    num_cpu_engines: int = 0
    """Number of engines without a card; used instead of `num_gpus`."""
    num_trainer_gpus: int = 0
    """Cards of the trainer. They come before the engines' cards in one placement group."""
    colocate: bool = False
    """Whether engines and trainer share the same cards and take turns."""
    gpu_fraction: float = 0.2
    """Share of a card that each engine's actor asks Ray for. The rest leaves room on the card for its other processes,
    and for a colocated trainer (THUDM/slime: slime/ray/rollout.py). It does not limit memory."""
    ray: str | None = None
    """Address of the Ray cluster that hosts the engines, or `auto`. None = this machine, or `auto` if the engines need
    several machines."""
    placement_group: str | None = None
    """Name, in the trainer's namespace, of the Ray placement group that holds the cards of trainer and engines. None =
    a new one is made for the engines' cards only."""
    data_parallel: int = 1
    """Number of parts of one engine that serve requests separately. vLLM: replicas, each with its share of the cards.
    SGLang: attention groups inside the tensor-parallel group."""
    router: RouterKind = "none"
    """Only `none` is allowed: the run's `engine.placement` distributes requests. The other values are still read in
    this version, to refuse them with an error."""
    first_port: int = 20_000
    """Lowest port to use: above those of Ray's workers (10002 to 19999)."""
    last_port: int = 32_767
    """Highest port to use: below Linux's ephemeral range."""

    def __post_init__(self) -> None:
        _check_counts(self)
        if self.num_gpus:
            _check_cards(self)
        _check_router(self)
        _check_cluster(self)
        if not 1 <= self.first_port < self.last_port <= 65_535:
            raise ConfigError(
                f"pool: first_port = {self.first_port!r} and last_port = {self.last_port!r}: ports are from 1 to "
                "65535, and the last one is above the first"
            )

    @property
    def num_engines(self) -> int:
        return self.num_cpu_engines or self.num_gpus // self.num_gpus_per_engine

    @property
    def nodes_per_engine(self) -> int:
        """Number of nodes that one engine spans."""
        return max(1, self.num_gpus_per_engine // self.num_gpus_per_node) if self.num_gpus else 1

    @property
    def gpus_per_member(self) -> int:
        """Number of cards of one engine on each of its nodes."""
        return min(self.num_gpus_per_engine, self.num_gpus_per_node) if self.num_gpus else 0

    @property
    def is_on_cluster(self) -> bool:
        """Whether Ray places the engines."""
        return self.ray is not None or self.placement_group is not None or self.num_gpus > self.num_gpus_per_node

    @property
    def engine_offset(self) -> int:
        """Index of the engines' first card in the placement group."""
        return 0 if self.colocate else self.num_trainer_gpus


def _check_counts(pool: PoolConfig) -> None:
    at_least_1 = {
        "num_gpus_per_engine": pool.num_gpus_per_engine,
        "num_gpus_per_node": pool.num_gpus_per_node,
        "data_parallel": pool.data_parallel,
    }
    at_least_0 = {
        "num_gpus": pool.num_gpus,
        "num_cpu_engines": pool.num_cpu_engines,
        "num_trainer_gpus": pool.num_trainer_gpus,
    }
    for least, values in ((1, at_least_1), (0, at_least_0)):
        for name, value in values.items():
            if value < least:
                raise ConfigError(f"pool.{name} = {value!r}: at least {least}")
    if pool.num_gpus and pool.num_cpu_engines:
        raise ConfigError(
            f"pool: num_gpus = {pool.num_gpus!r} and num_cpu_engines = {pool.num_cpu_engines!r}: set one to 0"
        )
    if not pool.num_gpus and not pool.num_cpu_engines:
        raise ConfigError(
            "pool: num_gpus and num_cpu_engines are both 0, so there is no engine to start: set one, "
            "or engine.base_url for engines that are up already"
        )
    if pool.num_cpu_engines and pool.data_parallel > 1:
        raise ConfigError(
            f"pool.data_parallel = {pool.data_parallel!r} divides cards, and engines on CPUs have none: "
            "set it to 1 and raise num_cpu_engines"
        )
    if not (math.isfinite(pool.gpu_fraction) and 0 < pool.gpu_fraction <= 1):
        raise ConfigError(f"pool.gpu_fraction = {pool.gpu_fraction!r}: a share of a card, above 0 and at most 1")
    if pool.colocate and pool.gpu_fraction == 1:
        raise ConfigError("pool.gpu_fraction = 1 leaves a colocated trainer nothing of the card; ask for less, as 0.2")


def _check_cards(pool: PoolConfig) -> None:
    """Refuse card counts that do not divide into whole engines, and engines that do not fit whole nodes."""
    each, node = pool.num_gpus_per_engine, pool.num_gpus_per_node
    if each > pool.num_gpus:
        raise ConfigError(f"pool: an engine of num_gpus_per_engine = {each} is more than num_gpus = {pool.num_gpus}")
    if pool.num_gpus % each:
        raise ConfigError(
            f"pool: num_gpus = {pool.num_gpus} is no multiple of num_gpus_per_engine = {each}: "
            f"take {pool.num_gpus - pool.num_gpus % each} or {pool.num_gpus - pool.num_gpus % each + each}"
        )
    if each > node and each % node:
        raise ConfigError(
            f"pool: an engine of num_gpus_per_engine = {each} has whole nodes of num_gpus_per_node = {node} only: "
            f"take {each - each % node} or {each - each % node + node}"
        )
    if each < node < pool.num_gpus and node % each:
        raise ConfigError(
            f"pool: num_gpus_per_engine = {each} does not divide num_gpus_per_node = {node}, and an engine would lie "
            f"across two nodes: take one of {[size for size in range(1, node + 1) if node % size == 0]}"
        )
    if each % pool.data_parallel:
        raise ConfigError(
            f"pool.data_parallel = {pool.data_parallel} does not divide num_gpus_per_engine = {each}: "
            f"take one of {[size for size in range(1, each + 1) if each % size == 0]}"
        )


def _check_cluster(pool: PoolConfig) -> None:
    for name, value in {"ray": pool.ray, "placement_group": pool.placement_group}.items():
        if value is not None and not value.strip():
            raise ConfigError(f"pool.{name} = {value!r}: the name is empty; leave it out")


def _check_router(pool: PoolConfig) -> None:
    if pool.router != "none":
        raise ConfigError(
            f"pool.router = {pool.router!r}: a service places its requests itself, on the engines that have their "
            "contexts; leave it out, or leave out service.pool and name the router as engine.base_url"
        )
