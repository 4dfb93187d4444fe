"""ServiceConfig: what a rollout service for a trainer is told beside its run. Values and their checks."""

import string
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from ramify.config.tracker_config import TrackerConfig
from ramify.core.errors import ConfigError
from ramify.servers.pool.config import PoolConfig
from ramify.tasks.data import DataConfig

OnUpdate = Literal["finish", "keep", "abort"]
OnStale = Literal["drop", "mask", "keep"]
Debug = Literal["none", "rollout_only", "train_only"]
MIXED: Final = "mixed"
"""The group filter that ships: groups whose rewards are all the same teach nothing and are dropped (DAPO's dynamic
sampling; THUDM/slime slime/rollout/filter_hub/dynamic_sampling_filters.py)."""
PLACE = "rollout_id"
"""What a path template is filled in with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalConfig:
    """One data set to evaluate on."""

    task: str | None = None
    """A built-in name or `path/to/file.py:Class`; None = the run's, or `data` where a file is named."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of the task's class."""
    split: str = "heldout"
    data: DataConfig = DataConfig()
    prompts: int = 64
    """Problems; of a file, at most so many."""
    repeats: int = 1
    """Answers to each (slime: n_samples_per_eval_prompt)."""
    seed: int = 0
    """The same problems and, on an engine with seeds, the same luck each time."""

    def __post_init__(self) -> None:
        if self.prompts < 1 or self.repeats < 1:
            raise ConfigError(f"prompts = {self.prompts!r}, repeats = {self.repeats!r}: both must be at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceConfig:
    """A rollout service. A group is one tree: all that grew from one problem."""

    batch_size: int = 32
    """Groups of a training batch (slime: rollout_batch_size)."""
    rows_per_group: int | None = None
    """Exactly so many rows of each group, for trainers that count on it (slime: n_samples_per_prompt). None = as many
    as the tree has."""
    shuffle: bool = True
    """Problems come in another order in each epoch, which follows from the run's seed."""
    max_staleness: int = 0
    """Batches that are grown ahead of the one asked for, and the most updates that a trained token may lie behind
    (inclusionAI/AReaL: max_head_offpolicyness). 0 = nothing grows while the trainer trains."""
    over_sampling: int = 0
    """Groups begun beyond those a batch needs. It is made of the first that are done, and the rest goes on in later
    ones. 0 = a batch is made of the next groups in order, whatever takes longest."""
    on_update: OnUpdate = "keep"
    """What becomes of turns on their way when weights are loaded: they are finished before, or cut and continued, or
    thrown away and sampled anew."""
    on_stale: OnStale = "drop"
    """What becomes of groups with tokens further behind than `max_staleness`: they are dropped, or those tokens are not
    trained, or nothing."""
    rollout_function: str | None = None
    """`module.function` or `path/to/file.py:function` in place of growing trees: (args, rollout_id, data_source,
    evaluation=False) -> groups of samples."""
    eval_function: str | None = None
    """The same for evaluations."""
    reward_function: str | None = None
    """(args, sample) -> a number or named parts, in place of the task's judges."""
    convert_function: str | None = None
    """(args, samples) -> training data, in place of ours."""
    group_filter: str | None = None
    """(args, samples of a group) -> whether to train it; `mixed` = only groups whose rewards differ."""
    buffer_filter: str | None = None
    """(args, rollout_id, buffer, num_groups) -> the groups that make the next batch."""
    sample_filter: str | None = None
    """(args, groups): sets `remove_sample` on those that are not trained but count in the normalisation."""
    function_deadline_s: float = 600.0
    """Of one call of one of these, rollout and eval functions left out."""
    reward_key: str | None = None
    """The part of a reward that is trained."""
    label_key: str | None = None
    """Column of the secret that a reward or rollout function finds as `sample.label`; the reward is then an oracle's.
    Filters and converters get samples without it."""
    save_debug: str | None = None
    """Path with {rollout_id} that every batch is written to, as JSON lines."""
    load_debug: str | None = None
    """The same to read batches from, in place of generating them."""
    debug: Debug = "none"
    """rollout_only: nothing is converted; train_only: no engine is asked for anything, and nothing is evaluated."""
    eval: Mapping[str, EvalConfig] = field(default_factory=dict[str, EvalConfig])
    """Name -> data set."""
    pool: PoolConfig | None = None
    """Cards and engines to start for the service; None = the engines are what `engine` says."""
    trackers: Mapping[str, TrackerConfig] = field(default_factory=dict[str, TrackerConfig])
    """Name -> where figures of batches and evaluations are kept."""
    always_train_step: bool = False
    """Figures stand at the train step that a rollout begins, not at its number (slime: wandb_always_use_train_step)."""
    global_batch_size: int | None = None
    """Samples of a train step; only for that."""

    def __post_init__(self) -> None:
        if self.batch_size < 1 or self.max_staleness < 0 or self.over_sampling < 0:
            raise ConfigError(
                f"service: batch_size = {self.batch_size!r} must be at least 1, max_staleness = "
                f"{self.max_staleness!r} and over_sampling = {self.over_sampling!r} at least 0"
            )
        if self.rows_per_group is not None and self.rows_per_group < 1:
            raise ConfigError(f"service.rows_per_group = {self.rows_per_group!r}: must be at least 1, or left out")
        if not self.function_deadline_s > 0:
            raise ConfigError(f"service.function_deadline_s = {self.function_deadline_s!r}: must be above 0")
        for name in ("save_debug", "load_debug"):
            _check_template(name, getattr(self, name))
        if self.debug == "train_only" and self.load_debug is None:
            raise ConfigError("service.debug = 'train_only' needs batches to train on: set service.load_debug")


def _check_template(name: str, template: str | None) -> None:
    """Refuse a path that names the same file for every batch, or asks for more than the batch's number."""
    if template is None:
        return
    try:
        places = {place for _, place, _, _ in string.Formatter().parse(template) if place is not None}
    except ValueError as error:
        raise ConfigError(f"service.{name} = {template!r} is not a path template: {error}") from None
    if places != {PLACE}:
        raise ConfigError(f"service.{name} = {template!r}: it must have {{{PLACE}}} and nothing else in braces")
    if template.endswith((".pt", ".pkl", ".pickle")):
        raise ConfigError(
            f"service.{name} = {template!r}: batches are JSON lines, which end in .jsonl; no pickle is read"
        )
