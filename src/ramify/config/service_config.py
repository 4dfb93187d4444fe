"""ServiceConfig: settings of a rollout service for a trainer, besides those of its run. Values and their checks."""

import string
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from ramify.config.tracker_config import TrackerConfig
from ramify.core.errors import ConfigError, ContractError
from ramify.core.segment import Sampling
from ramify.servers.pool.config import PoolConfig
from ramify.tasks.data import DataConfig

OnUpdate = Literal["finish", "keep", "abort"]
OnStale = Literal["drop", "mask", "keep"]
Debug = Literal["none", "rollout_only", "train_only"]
LossMaskType = Literal["qwen", "qwen3", "qwen3_5", "distill_qwen"]
SLIMES_SFT: Final = "slime.rollout.sft_rollout.generate_rollout"
SAMPLES_NOTHING: Final = (SLIMES_SFT, "ramify.service.sft.generate_rollout")
"""Rollout functions that read written samples and use no engine."""
MIXED: Final = "mixed"
"""The built-in group filter: it drops groups whose rewards are all the same, because they teach nothing (DAPO's dynamic
sampling; THUDM/slime slime/rollout/filter_hub/dynamic_sampling_filters.py)."""
PLACE = "rollout_id"
"""The placeholder in a path template."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalConfig:
    """One data set to evaluate on."""

    task: str | None = None
    """A built-in name or `path/to/file.py:Class`; None = the run's task, or `data` if a file is named."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of the task's class."""
    split: str = "heldout"
    """`train` or `heldout`, for tasks that have both."""
    data: DataConfig = DataConfig()
    """A file of questions instead of the task's own."""
    prompts: int = 64
    """Number of problems; of a file, at most this many."""
    repeats: int = 1
    """Answers per problem (slime: n_samples_per_eval_prompt)."""
    seed: int = 0
    """Each evaluation uses the same problems and, on an engine with seeds, the same random numbers."""
    temperature: float | None = None
    """Temperature of sampling (slime: eval_temperature). None = that of training; likewise for the next three
    settings."""
    top_p: float | None = None
    """Share of the probability that the likeliest tokens drawn from hold together (slime: eval_top_p)."""
    top_k: int | None = None
    """Number of likeliest tokens drawn from (slime: eval_top_k); 0 = no limit, for which slime writes -1."""
    max_response_tokens: int | None = None
    """Most tokens of a whole answer, observations included (slime: eval_max_response_len)."""
    reward_key: str | None = None
    """The part of a reward that is reported; None = the part that is trained, if the judge gives parts (slime:
    eval_reward_key)."""

    def __post_init__(self) -> None:
        if self.prompts < 1 or self.repeats < 1:
            raise ConfigError(f"prompts = {self.prompts!r}, repeats = {self.repeats!r}: both must be at least 1")
        if self.max_response_tokens is not None and self.max_response_tokens < 1:
            raise ConfigError(f"max_response_tokens = {self.max_response_tokens!r}: must be at least 1, or left out")
        try:
            self.sampling(Sampling())
        except ContractError as error:
            raise ConfigError(str(error)) from None

    def sampling(self, usual: Sampling) -> Sampling:
        """How answers are sampled, where training samples by `usual`."""
        own = {"temperature": self.temperature, "top_p": self.top_p, "top_k": self.top_k}
        return replace(usual, **{name: value for name, value in own.items() if value is not None})


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceConfig:
    """A rollout service. A group is one tree: all that grew from one problem."""

    batch_size: int = 32
    """Groups in a training batch (slime: rollout_batch_size)."""
    rows_per_group: int | None = None
    """Exactly this many rows of each group, for trainers that expect it (slime: n_samples_per_prompt). None = as many
    as the tree has."""
    shuffle: bool = True
    """Whether each epoch has its own order of problems. The order depends only on the run's seed."""
    max_staleness: int = 0
    """How many batches are grown ahead of the requested one, and the most updates by which a trained token may lag
    behind (inclusionAI/AReaL: max_head_offpolicyness). 0 = nothing grows while the trainer trains."""
    over_sampling: int = 0
    """Groups started beyond those a batch needs. The first groups that finish make the batch, and the others go on into
    later batches. 0 = a batch is made of the next groups in order, however long they take."""
    on_update: OnUpdate = "keep"
    """What happens to unfinished turns when weights are loaded: finish them first, cut and continue them (`keep`), or
    discard them and sample again."""
    on_stale: OnStale = "drop"
    """What happens to groups with tokens older than `max_staleness` updates: drop the groups, mask these tokens, or
    keep all."""
    rollout_function: str | None = None
    """`module.function` or `path/to/file.py:function` that replaces the growing of trees: (args, rollout_id,
    data_source, evaluation=False) -> groups of samples."""
    loss_mask_type: LossMaskType | None = None
    """How slime's SFT function masks a conversation (slime: loss_mask_type); None = `qwen`, as in slime."""
    eval_function: str | None = None
    """The same for evaluations."""
    reward_function: str | None = None
    """(args, sample) -> a number or named parts. Replaces the task's judges."""
    convert_function: str | None = None
    """(args, samples) -> training data. Replaces the built-in conversion."""
    group_filter: str | None = None
    """(args, samples of a group) -> whether to train it; `mixed` = only groups whose rewards differ."""
    buffer_filter: str | None = None
    """(args, rollout_id, buffer, num_groups) -> the groups of the next batch."""
    sample_filter: str | None = None
    """(args, groups): sets `remove_sample` on samples that are not trained but count in the normalisation."""
    function_deadline_s: float = 600.0
    """Seconds for one call of one of these functions, except rollout and eval functions."""
    reward_key: str | None = None
    """The part of a reward that is trained."""
    label_key: str | None = None
    """Column of the secret that a reward or rollout function finds as `sample.label`; rewards are then marked as an
    oracle's. Filters and converters get samples without it."""
    save_debug: str | None = None
    """Path with {rollout_id}; every batch is written there: as slime writes it if the path ends in `.pt`, else as JSON
    lines."""
    load_debug: str | None = None
    """Path with {rollout_id}; batches are read from there instead of being generated: slime's if the path ends in
    `.pt`, else JSON lines."""
    debug: Debug = "none"
    """rollout_only: nothing is converted. train_only: no engine is used and nothing is evaluated."""
    eval: Mapping[str, EvalConfig] = field(default_factory=dict[str, EvalConfig])
    """Name -> data set."""
    pool: PoolConfig | None = None
    """GPUs and engines to start for the service; None = the engines are those of `engine`."""
    trackers: Mapping[str, TrackerConfig] = field(default_factory=dict[str, TrackerConfig])
    """Name -> tracker for the figures of batches and evaluations."""
    always_train_step: bool = False
    """Plot figures against the train step at which a rollout begins, not its number (slime:
    wandb_always_use_train_step)."""
    global_batch_size: int | None = None
    """Samples per train step; used only for `always_train_step`."""

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
        is_read = self.load_debug is not None or self.rollout_function in SAMPLES_NOTHING
        if self.debug == "train_only" and not is_read:
            raise ConfigError(
                "service.debug = 'train_only' needs batches to train on: set service.load_debug, or a "
                f"service.rollout_function that samples nothing, {' or '.join(map(repr, SAMPLES_NOTHING))}"
            )
        if self.loss_mask_type is not None and self.rollout_function != SLIMES_SFT:
            raise ConfigError(
                f"service.loss_mask_type = {self.loss_mask_type!r} is of slime's SFT: set service.rollout_function = "
                f"{SLIMES_SFT!r}, or leave it out"
            )


def _check_template(name: str, template: str | None) -> None:
    """Refuse a path that names the same file for every batch, or has other placeholders."""
    if template is None:
        return
    try:
        places = {place for _, place, _, _ in string.Formatter().parse(template) if place is not None}
    except ValueError as error:
        raise ConfigError(f"service.{name} = {template!r} is not a path template: {error}") from None
    if places != {PLACE}:
        raise ConfigError(f"service.{name} = {template!r}: it must have {{{PLACE}}} and nothing else in braces")
    if template.endswith((".pkl", ".pickle", ".pth")):
        raise ConfigError(
            f"service.{name} = {template!r}: batches are slime's files, which end in .pt, or JSON lines, which end in "
            ".jsonl; no other pickle is read"
        )
