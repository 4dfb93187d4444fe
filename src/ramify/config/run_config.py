"""RunConfig: all settings of a run, as one tree of frozen values that are checked when they are built.

It owns the fields, their defaults and the checks that need only the values. `configure` handles files, presets,
overrides and the options of plug-ins. An impossible value raises `ConfigError`. Nothing here reads a file or a clock.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from ramify.config.service_config import ServiceConfig
from ramify.core.action import ActionConfig
from ramify.core.environment import Reward, RewardRule
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
    """The task: where problems, format, tools and judges come from."""

    name: str = "countdown"
    """A built-in name or `path/to/file.py:Class`."""
    split: str = "heldout"
    """`train` or `heldout`, for `countdown`, `herds`, `hops` and `ledgers`."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of the task's class."""

    def __post_init__(self) -> None:
        _named("task.name", self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyConfig:
    """The strategy that grows the trees, and its options: the fields of its own `Config`."""

    name: str = "chains"
    """A built-in name or `path/to/file.py:Class`."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the strategy's `Config`."""
    reading: str | None = None
    """How the number of chains was read from the older layout of two numbers. Set automatically, for the record
    only."""

    def __post_init__(self) -> None:
        _named("strategy.name", self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Which engine samples, and which model it runs."""

    name: str = "builtin"
    """A built-in name or `path/to/file.py:Class`."""
    model: str | None = None
    """A name or a folder; None = the engine's own, which for `builtin` depends on the task (`engines/shipped.py`)."""
    base_url: str | None = None
    """Address of its server; several, separated by commas, are replicas of one model. None = it has no server."""
    replicas: int = 0
    """Number of servers to start for the run and stop after it; 0 = those at `base_url` already run."""
    placement: Placement = "prefix"
    """How a replica is chosen for a request: the one that has its context cached, or one after the other."""
    log: str | None = None
    """File to which the engine appends every generation, for `ramify check RUN --against`; None = no log."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of the engine's class."""
    retry: RetryPolicy = POLICY
    """When its calls time out and when they are retried."""
    server: ServerConfig = ServerConfig()
    """How the `replicas` are started."""
    prices: Prices = UNPRICED
    """Prices of its tokens."""

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
    """Most tokens of actions and observations after the opening context."""
    max_tool_calls: int = 6
    """Most tool calls of one path."""
    max_turns: int | None = None
    """Most turns of a path; None = as many as the tokens allow. In the last turn no tool is called; an environment that
    answers every turn answers it."""
    empty_call: Literal["observe", "end", "call"] = "observe"
    """An empty call is answered with an error text, ends the path, or is carried out as any other (Search-R1)."""
    no_action: Literal["end", "observe"] = "end"
    """A turn without an action that the model ends, or that is cut at `actions.policy.max_tokens`: ends the path, or is
    answered with a corrective observation, as in Search-R1."""
    tool_failed: Literal["observe", "end"] = "observe"
    """A tool that hangs or crashes is answered with an error text, or ends the path."""
    max_observation_tokens: int | None = None
    """Most tokens of an observation. None = no limit of its own."""
    observation_cut: Literal["text", "end"] = "text"
    """What a longer observation loses: the end of its text, so that the frame around it stays whole, or whatever stands
    at its end, the frame included (Search-R1)."""
    prune: str | None = None
    """Rule that prunes paths: a built-in name or `file.py:function`."""
    prune_options: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of the rule, besides the branch."""
    prune_judge: str | None = None
    """Judge that scores every step; the rule gets the score as `value`. None = the rule reads no score."""
    keep: float = 0.0
    """Random termination: the probability that a path goes on although the rule fires. 0: the path always ends and is
    judged; this gives the exact gradient of the truncated task. Between 0 and 1: an ended path has reward 0 and a
    surviving path has weight 1 / keep, exact for the task without pruning. 1: every path goes on, and a note says where
    the rule fired."""
    stop_rule: StopRule = "corrected"
    """Which rules end a path; the published ones are for comparison."""

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
        """The same configuration, but without pruning if `keep` is above 0: evaluations weigh all paths alike."""
        return replace(self, prune=None, prune_options={}, prune_judge=None, keep=0.0) if self.keep else self


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolConfig:
    """One tool besides the task's; it replaces a tool of the task with the same name."""

    kind: str | None = None
    """A built-in name or `path/to/file.py:Name`; None = its name in `tools.use`."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of its class or function."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolsConfig:
    """How tools are run, and tools besides the task's. Deadline and retries are those of RUC-NLPIR/ARPO."""

    use: Mapping[str, ToolConfig] = field(default_factory=dict[str, ToolConfig])
    """Name -> tool."""
    deadline_s: float = 120.0
    """Seconds that one call may take."""
    max_retries: int = 3
    """Tries after the first, where the fault is the tool's."""
    max_parallel: int = 64
    """Most calls at one time, over all trees; other calls wait (RUC-NLPIR/ARPO: tool workers). With slow tools and many
    trees in flight, this limits the speed of the run: allow as many as the tool's server can take."""
    max_result_bytes: int = 65536
    """A longer result is cut, and a note in it says so."""
    max_parked: int = 8192
    """Most sessions kept for later forks. Beyond it, the oldest are closed, and replayed when they are needed. If it is
    below the number of paths in flight, every call replays its branch. The default is 512 trees of 16 paths."""

    def __post_init__(self) -> None:
        _positive("tools.deadline_s", self.deadline_s)
        _positive("tools.max_parallel", self.max_parallel)
        _positive("tools.max_result_bytes", self.max_result_bytes)
        _positive("tools.max_parked", self.max_parked)
        if self.max_retries < 0:
            raise ConfigError(f"tools.max_retries = {self.max_retries!r}: 0 or more retries are allowed")


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentConfig:
    """The environment that agents act in. It gives the problems in place of the task's."""

    name: str | None = None
    """A built-in name or `path/to/file.py:Class`; None = the task's own environment, or none."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of its class."""
    reward: RewardRule | None = None
    """How the rewards of steps and the score make the reward of a path; None = the environment's own rule."""
    discount: float = 1.0
    """Factor of the rule `discounted`, for each step before a reward."""
    answer_tag: str | None = None
    """Tag that ends the path with an answer; None = only the environment ends it, or the model by a turn without a
    call where the environment takes calls alone."""

    def __post_init__(self) -> None:
        Reward(self.reward or "sum", self.discount)


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeConfig:
    """One judge besides the task's, for strategies to ask. It does not score leaves by itself."""

    kind: str | None = None
    """A built-in name, `path/to/file.py:Class` or `path/to/file.py:function`; None = its name in `judges`."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of its class."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsConfig:
    """Which leaves become rows, and how often a shared token is trained (`docs/concepts/rows.md`)."""

    policy: Literal["once", "fraction", "per_leaf"] = "once"
    """How a token that several rows share is weighted: in one row, divided among them, or in each (as published, not
    exact)."""
    leaves: int | None = None
    """Leaves kept of each tree; None = all."""
    min_leaves: int | None = None
    """Trees with fewer leaves to train get additional chains, for trainers that need n rows of every tree; the credit
    of such a tree is not exact. None = no chains are added."""
    sample: str = "uniform"
    """Rule that selects the kept leaves: a built-in name or `file.py:function`."""
    normaliser: float | None = None
    """What every tree's rows are divided by, so that trees of all sizes are on one scale; None = the number of rows
    that the strategy plans for a tree."""
    max_tokens: int | None = None
    """Longest row, prompt included. Longer paths make no row, which the other rows of their tree say; None = any."""

    def __post_init__(self) -> None:
        _positive("rows.normaliser", self.normaliser)
        _positive("rows.max_tokens", self.max_tokens)
        _positive("rows.leaves", self.leaves)
        _positive("rows.min_leaves", self.min_leaves)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """One complete run: the same config and version grow the same trees on a deterministic engine."""

    preset: str | None = None
    """Name of the preset that the values came from; for the record only."""
    task: TaskConfig = TaskConfig()
    """The task: where problems, format, tools and judges come from."""
    data: DataConfig = DataConfig()
    """A file of questions instead of the task's own."""
    prompts: int = 8
    """Number of problems, one tree each."""
    seed: int = 0
    """The same seed grows the same trees, on a deterministic engine."""
    strategy: StrategyConfig = StrategyConfig()
    """The strategy that grows the trees, and its options."""
    engine: EngineConfig = EngineConfig()
    """The engine that the action `policy` samples from."""
    engines: Mapping[str, EngineConfig] = field(default_factory=dict[str, EngineConfig])
    """Further engines, for actions to name: other models, other addresses. Only engines of judges may differ in
    codec."""
    format: str | None = None
    """A built-in name or `file.py:Class`; None (in a file `"task"`) = the task's own format."""
    format_options: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of the format's class; for `chat`, the fields of `ramify.formats.chat:ChatOptions`."""
    actions: Mapping[str, ActionConfig] = field(default_factory=lambda: {"policy": ActionConfig()})
    """Name -> how one kind of growth is sampled; `policy` is the one that paths grow by."""
    growth: GrowthConfig = GrowthConfig()
    """How long one path may get, and what ends it."""
    environment: EnvironmentConfig = EnvironmentConfig()
    """The world that the agents act in, if there is one."""
    tools: ToolsConfig = ToolsConfig()
    """How tools are run, and tools besides the task's."""
    judges: Mapping[str, JudgeConfig] = field(default_factory=dict[str, JudgeConfig])
    """Name -> judge, for the Judge commands of strategies. The task's own judges also score its leaves."""
    limits: Limits = Limits()
    """Limits of each tree."""
    run_limits: Limits = Limits()
    """Limits of the whole run."""
    delivery: Delivery = "ordered"
    """Outcomes are told to strategies in the order of their commands, or as they come."""
    credit: str = "auto"
    """Advantage estimator of the rows: a built-in one, or `path/to/file.py:function`, which no row calls exact; `auto`
    takes an exact one where the forks allow it."""
    rows: RowsConfig = RowsConfig()
    """Which leaves become rows, and how often a shared token is trained."""
    max_trees: int = 32
    """Most trees in flight at one time."""
    max_failed_share: float = 0.05
    """The run stops if a larger share of its commands fails."""
    durability: Durability = "group"
    """When a record of the journal is synced to the disk: `group`: with others, after 20 ms or more; `fsync`: by
    itself; `os`: when the system likes, which survives a crash of the process only."""
    service: ServiceConfig | None = None
    """Further settings of a rollout service; None = the run is not a service."""

    def __post_init__(self) -> None:
        _positive("prompts", self.prompts)
        _positive("max_trees", self.max_trees)
        if not 0 <= self.max_failed_share <= 1:
            raise ConfigError(f"max_failed_share = {self.max_failed_share!r}: it is a share, from 0 to 1")
        if "policy" in self.engines:
            raise ConfigError("engines.policy: the engine of that name is the one called `engine`")
        if "policy" not in self.actions:
            raise ConfigError(f"actions: there must be one called 'policy', got {sorted(self.actions)}")
        for name, action in self.actions.items():
            if action.system is not None and action.edge == "continues" and name != "policy":
                raise ConfigError(
                    f"actions.{name}.system = {action.system!r:.80}: the action continues a path, which has its system "
                    "message already: that of the action that opened it; set actions.policy.system, or give this "
                    "action a context of its own by edge = 'quotes' and a template"
                )
        model = MODEL_OF_TASK.get(self.task.name)
        if model is not None and self.engine.name == "builtin" and self.engine.model is None:
            object.__setattr__(self, "engine", replace(self.engine, model=model))

    @property
    def opening_system(self) -> str | None:
        """System message of a tree's opening context, as far as it is set; None = the format's own."""
        policy = self.actions["policy"]
        own = policy.system if policy.edge == "continues" else None
        return self.format_options.get("system") if own is None else own
