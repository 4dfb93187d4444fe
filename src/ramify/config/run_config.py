"""RunConfig: everything a run can be told, as one tree of frozen values that are checked when they are built.

Owns the fields, their defaults and the checks that need nothing but the values. Files, presets, overrides and the
options of plug-ins are `configure`'s. An impossible value raises `ConfigError`; nothing here reads a file or a clock.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from ramify.config.service_config import ServiceConfig
from ramify.core.action import ActionConfig
from ramify.core.errors import ConfigError
from ramify.core.limits import Limits
from ramify.core.prices import UNPRICED, Prices
from ramify.edge.retries import POLICY, RetryPolicy
from ramify.engines.shipped import MODEL_OF_TASK
from ramify.servers.server_config import ServerConfig
from ramify.tasks.data import DataConfig

StopRule = Literal["corrected", "arpo", "at2po"]
Delivery = Literal["ordered", "eager"]
Durability = Literal["group", "fsync", "os"]
Placement = Literal["prefix", "round_robin"]


def _positive(name: str, value: float | None) -> None:
    if value is not None and not 0 < value < math.inf:
        raise ConfigError(f"{name} = {value!r}: it must be above 0")


def _named(name: str, value: str) -> None:
    if not value.strip():
        raise ConfigError(f"{name} = {value!r}: a name or path/to/file.py:Class is needed")


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskConfig:
    """Which task the problems, format, tools and judges are of."""

    name: str = "countdown"
    """A built-in name or `path/to/file.py:Class`."""
    split: str = "heldout"
    options: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of the task's class."""

    def __post_init__(self) -> None:
        _named("task.name", self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyConfig:
    """Which strategy grows the trees, and its options: the fields of its own `Config`."""

    name: str = "chains"
    options: Mapping[str, Any] = field(default_factory=dict)
    reading: str | None = None
    """How the number of chains was read from the older layout of two numbers; filled in, for the record only."""

    def __post_init__(self) -> None:
        _named("strategy.name", self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Which engine samples, and the model it runs."""

    name: str = "builtin"
    model: str | None = None
    """A name or a folder; None = the engine's own, which for `builtin` goes by the task (`engines/shipped.py`)."""
    base_url: str | None = None
    """Where its server is; several with commas are replicas of one model. None = it has none."""
    replicas: int = 0
    """Servers started for the run and stopped behind it; 0 = those at `base_url` are there already."""
    placement: Placement = "prefix"
    """Which replica a request goes to: where its context is cached, or one after the other."""
    log: str | None = None
    """File that the engine appends every generation to, for `ramify check RUN --against`; None = it keeps no log."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of the engine's class."""
    retry: RetryPolicy = POLICY
    """When its calls are given up and when they are tried again."""
    server: ServerConfig = ServerConfig()
    """How the `replicas` are started."""
    prices: Prices = UNPRICED
    """What its tokens cost."""

    def __post_init__(self) -> None:
        _named("engine.name", self.name)
        if self.replicas < 0 or (self.replicas and self.base_url is not None):
            raise ConfigError(f"replicas = {self.replicas!r}: 0 with a base_url, or as many servers as to start")

    @property
    def base_urls(self) -> tuple[str, ...]:
        """Addresses of the replicas."""
        return tuple(url.strip() for url in (self.base_url or "").split(",") if url.strip())


@dataclass(frozen=True, slots=True, kw_only=True)
class GrowthConfig:
    """How long one path may get, and what ends it."""

    max_response_tokens: int = 256
    """Actions and observations after the opening context."""
    max_tool_calls: int = 6
    max_turns: int | None = None
    """Most turns of a path; None = as many as the tokens allow. In the last one no tool is called any more."""
    empty_call: Literal["observe", "end"] = "observe"
    """An empty call is answered with an error text, or ends the path."""
    no_action: Literal["end", "observe"] = "end"
    """A turn that ends, or is cut at `actions.policy.max_tokens`, without an action: ends the path, or is answered with
    a corrective observation, as in Search-R1."""
    tool_failed: Literal["observe", "end"] = "observe"
    """A tool that hangs or crashes is answered with an error text, or ends the path."""
    max_observation_tokens: int | None = None
    """A longer observation has its text cut; the frame around it stays whole. None = no limit of its own."""
    prune: str | None = None
    """Rule that gives paths up: a built-in name or `file.py:function`."""
    prune_options: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of the rule, beside the branch."""
    prune_judge: str | None = None
    """Judge of steps, asked of every step, whose value the rule is given as `value`; None = the rule reads none."""
    keep: float = 0.0
    """Probability that a path goes on where the rule fires. 0: it ends, and is judged: the exact gradient of the task
    so truncated. Above: what ends is worth 0 and what goes on counts 1 / keep, exact for the task as it is. 1: all go
    on, and a note says where the rule fired."""
    stop_rule: StopRule = "corrected"
    """Which reading of a stop is used; the published ones are for comparison."""

    def __post_init__(self) -> None:
        _positive("growth.max_response_tokens", self.max_response_tokens)
        _positive("growth.max_turns", self.max_turns)
        _positive("growth.max_observation_tokens", self.max_observation_tokens)
        if not 0 <= self.keep <= 1:
            raise ConfigError(f"growth.keep = {self.keep!r}: it is a probability, from 0 to 1")
        if self.keep and self.prune is None:
            raise ConfigError(f"growth.keep = {self.keep!r}: it is the coin of a prune rule; set growth.prune")
        if self.prune_judge is not None and self.prune is None:
            raise ConfigError(f"growth.prune_judge = {self.prune_judge!r}: it is of a prune rule; set growth.prune")
        if self.max_tool_calls < 0:
            raise ConfigError(f"growth.max_tool_calls = {self.max_tool_calls!r}: 0 or more calls are allowed")

    @property
    def without_coin(self) -> "GrowthConfig":
        """The same, but where a coin is thrown no path is given up: for evaluations, which count paths alike."""
        return replace(self, prune=None, prune_options={}, prune_judge=None, keep=0.0) if self.keep else self


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolConfig:
    """One tool beside the task's, or in the place of the one of its name."""

    kind: str | None = None
    """A built-in name or `path/to/file.py:Name`; None = the name it is used under."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of its class or function."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolsConfig:
    """How tools are run, and which beside the task's. Deadline and retries: those of RUC-NLPIR/ARPO."""

    use: Mapping[str, ToolConfig] = field(default_factory=dict[str, ToolConfig])
    """Name -> tool."""
    deadline_s: float = 120.0
    max_retries: int = 3
    max_parallel: int = 64
    """Calls carried out at once, of all trees; others wait their turn (RUC-NLPIR/ARPO: tool workers). Where tools are
    slow and many trees are in flight this is what the run waits for: allow as many as the tool's server bears."""
    max_result_bytes: int = 65536
    """A longer result is cut, and says so."""
    max_parked: int = 8192
    """Sessions kept for forks to come; beyond it the oldest are closed and replayed when they are needed. Fewer than
    paths in flight and every call replays its branch: the default is 512 trees of 16 paths."""

    def __post_init__(self) -> None:
        _positive("tools.deadline_s", self.deadline_s)
        _positive("tools.max_parallel", self.max_parallel)
        _positive("tools.max_result_bytes", self.max_result_bytes)
        _positive("tools.max_parked", self.max_parked)
        if self.max_retries < 0:
            raise ConfigError(f"tools.max_retries = {self.max_retries!r}: 0 or more retries are allowed")


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeConfig:
    """One judge beside the task's, for strategies to ask; it scores no leaf by itself."""

    kind: str | None = None
    """A built-in name, `path/to/file.py:Class` or `path/to/file.py:function`; None = the name it is used under."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of its class."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsConfig:
    """Which leaves become rows, and how often a shared token is trained (`docs/credit.md`)."""

    policy: Literal["once", "fraction", "per_leaf"] = "once"
    leaves: int | None = None
    """Leaves kept of each tree; None = all."""
    min_leaves: int | None = None
    """Fresh chains are added to a tree that has fewer leaves to train, for trainers that need n rows of every tree; its
    credit is then not exact. None = a tree has what its strategy grew."""
    sample: str = "uniform"
    """Rule that draws the kept leaves: a built-in name or `file.py:function`."""

    def __post_init__(self) -> None:
        _positive("rows.leaves", self.leaves)
        _positive("rows.min_leaves", self.min_leaves)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """One run, complete: the same config and version grow the same trees on a deterministic engine."""

    preset: str | None = None
    """Name of the preset the values began from; for the record only."""
    task: TaskConfig = TaskConfig()
    data: DataConfig = DataConfig()
    """A file of questions in place of the task's own."""
    prompts: int = 8
    """Number of problems, one tree each."""
    seed: int = 0
    strategy: StrategyConfig = StrategyConfig()
    engine: EngineConfig = EngineConfig()
    """What the action `policy` samples from."""
    engines: Mapping[str, EngineConfig] = field(default_factory=dict[str, EngineConfig])
    """Further engines, for actions to name: other models, other addresses. Only judges' may have another codec."""
    format: str | None = None
    """A built-in name or `file.py:Class`; None, in a file `"task"`, = the task's own."""
    format_options: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of the format's class; of `chat`, `ramify.formats.chat:ChatOptions`."""
    actions: Mapping[str, ActionConfig] = field(default_factory=lambda: {"policy": ActionConfig()})
    growth: GrowthConfig = GrowthConfig()
    tools: ToolsConfig = ToolsConfig()
    judges: Mapping[str, JudgeConfig] = field(default_factory=dict[str, JudgeConfig])
    """Name -> judge, for the Judge commands of strategies; the task's own judge its leaves as well."""
    limits: Limits = Limits()
    """Of each tree."""
    run_limits: Limits = Limits()
    """Of the whole run."""
    delivery: Delivery = "ordered"
    credit: str = "auto"
    rows: RowsConfig = RowsConfig()
    max_trees: int = 32
    """Trees in flight at once."""
    max_failed_share: float = 0.05
    """A run of whose commands a larger share fails is stopped."""
    durability: Durability = "group"
    service: ServiceConfig | None = None
    """What a rollout service is told besides; None = the run is none."""

    def __post_init__(self) -> None:
        _positive("prompts", self.prompts)
        _positive("max_trees", self.max_trees)
        if not 0 <= self.max_failed_share <= 1:
            raise ConfigError(f"max_failed_share = {self.max_failed_share!r}: it is a share, from 0 to 1")
        if "policy" in self.engines:
            raise ConfigError("engines.policy: the engine of that name is the one called `engine`")
        if "policy" not in self.actions:
            raise ConfigError(f"actions: there must be one called 'policy', got {sorted(self.actions)}")
        model = MODEL_OF_TASK.get(self.task.name)
        if model is not None and self.engine.name == "builtin" and self.engine.model is None:
            object.__setattr__(self, "engine", replace(self.engine, model=model))
