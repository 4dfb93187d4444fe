"""Slime args: the arguments of a trainer's command line that concern rollouts, read and checked once per call.

The trainer's arguments are one flat namespace, or None in a test. Our keys (`ramify_…`) come from the YAML file of
`--custom-config-path`. Flags that a tree would silently ignore raise an error that says why and what to do.
"""

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from ramify import plugins
from ramify.core.errors import ConfigError
from ramify.integrations.background_loop import trainer
from ramify.rows.slime import Rollouts

Mean = Literal["tokens", "rollouts"]
"""What the loss is averaged over. tokens: every trained token of a batch has the same weight, so the gradient is that
of the credit; rollouts: the mean over each rollout's tokens first, the trainer's default, which gives tokens of short
rows more weight."""
CONFIG_VARIABLE: Final = "RAMIFY_CONFIG"
"""Environment variable with the path of the TOML file, used if the arguments name none."""

Refusals = tuple[tuple[str, tuple[object, ...], str], ...]
REFUSED: Final[Refusals] = (
    ("apply_chat_template", (False, None), "the format of the TOML renders questions; leave it out"),
    (
        "group_rm",
        (False, None),
        "each leaf is judged when it ends, before its tree is credited; use a judge of single leaves",
    ),
    ("multimodal_keys", (None,), "questions are text"),
    ("rollout_top_p", (1.0, None), "the kept tokens are not recorded; sample from the whole distribution"),
    ("rollout_top_k", (-1, 0, None), "logprobs are those of the whole distribution; sample from it"),
    ("rollout_stop", (None, [], ""), "the format decides what ends a turn; set format_options in the TOML"),
    ("rollout_stop_token_ids", (None, []), "the format decides what ends a turn; set format_options in the TOML"),
    ("custom_generate_function_path", (None,), "slime calls it once per sample, and a tree is grown per group"),
    ("rollout_sample_hook_path", (None, [], ()), "slime calls it before rewards; use a judge in the TOML"),
    ("use_rollout_routing_replay", (False, None), "the experts of a token are not recorded"),
    ("use_critic", (False, None), "trees give per-token advantages, which a critic would read as rewards"),
)
"""Argument, its allowed values, and why other values are not supported."""

_NO_TIMES = "every question is answered, and a set takes as long as it takes; leave it out"
_NO_SOURCES = "questions are rendered by the format and judged by custom_rm_path, rm_type or the TOML's judges"
EVAL_REFUSED: Final[Refusals] = (
    ("eval_max_prompt_len", (None,), "every question is answered; leave long ones out of the file"),
    ("eval_min_new_tokens", (None, 0), "engines are not asked for a least length; leave it out"),
)
"""The same for arguments of evaluations."""
SET_REFUSED: Final[Refusals] = (
    ("stop", (None, [], ""), "the format decides what ends a turn; set format_options in the TOML"),
    ("stop_token_ids", (None, []), "the format decides what ends a turn; set format_options in the TOML"),
    ("min_new_tokens", (None, 0), "engines are not asked for a least length; leave it out"),
    ("repetition_penalty", (None, 1, 1.0), "engines sample by temperature, top_p and top_k; leave it out"),
    ("skip_special_tokens", (None, False), "responses are decoded from their ids, control tokens included"),
    ("no_stop_trim", (None, True), "the word that ends a turn belongs to the response"),
    ("apply_chat_template", (False, None), "the format of the TOML renders questions; leave it out"),
    ("multimodal_keys", (None,), "questions are text"),
    ("custom_generate_function_path", (None,), "chains are grown for each question; leave it out"),
    ("app_service", (None,), "chains are sampled by the trainer's engines or the TOML's"),
    ("eval_task_timeout", (None,), _NO_TIMES),
    ("min_eval_samples", (None,), _NO_TIMES),
    ("eval_early_stop_remaining", (None,), _NO_TIMES),
    ("eval_early_stop_idle_timeout", (None,), _NO_TIMES),
    ("message_processor", (None,), _NO_SOURCES),
    ("reward_model", (None,), _NO_SOURCES),
    ("remote_environment", (None,), _NO_SOURCES),
)
"""The same for fields of a set of `--eval-config` (THUDM/slime slime/utils/eval_config.py `EvalDatasetConfig`)."""
OURS: Final = "ramify.integrations.slime."
"""Dotted paths of our functions begin so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlimeArgs:
    """The trainer's arguments that rollouts use. None = not set."""

    config: Path
    """The run's TOML file."""
    num_samples: int | None = None
    """Samples in a group."""
    num_groups: int | None = None
    """Groups in a batch."""
    num_drawn: int | None = None
    """Groups drawn at a time; surplus groups go back to the data source."""
    rollouts: Rollouts = "leaf"
    mean: Mean = "tokens"
    reward_key: str | None = None
    eval_reward_key: str | None = None
    rm_path: str | None = None
    """Function that rewards a sample instead of the TOML's judges."""
    rm_type: str | None = None
    """The trainer's built-in kind of reward."""
    filter_path: str | None = None
    """Function that keeps or drops a whole group."""
    sample_filter_path: str | None = None
    all_samples_path: str | None = None
    router: str | None = None
    """Address of the engines."""
    model: str | None = None
    """Folder of the model, with its tokenizer."""
    temperature: float | None = None
    max_response_tokens: int | None = None

    def __post_init__(self) -> None:
        counts = {"n_samples_per_prompt": self.num_samples, "rollout_batch_size": self.num_groups}
        for name, value in {**counts, "over_sampling_batch_size": self.num_drawn}.items():
            if value is not None and value < 1:
                raise ConfigError(f"{name} = {value!r}: must be at least 1")
        if self.rollouts not in ("leaf", "tree"):
            raise ConfigError(f"ramify_rollouts = {self.rollouts!r}: must be 'leaf' or 'tree'")
        if self.mean not in ("tokens", "rollouts"):
            raise ConfigError(f"ramify_mean = {self.mean!r}: must be 'tokens' or 'rollouts'")
        if self.temperature is not None and not 0 < self.temperature < math.inf:
            raise ConfigError(
                f"rollout_temperature = {self.temperature!r}: must be above 0, or logprobs cannot be trained"
            )

    @classmethod
    def of(cls, args: Any) -> "SlimeArgs":
        """Read a trainer's arguments. Raises `ConfigError`, also for evaluation sets that our function would answer."""
        _refuse(args, REFUSED)
        if (said_of(args, "eval_function_path") or OURS).startswith(OURS):
            refuse_sets(args)
        said = cls(
            config=_config(args),
            num_samples=said_of(args, "n_samples_per_prompt"),
            num_groups=said_of(args, "rollout_batch_size"),
            num_drawn=said_of(args, "over_sampling_batch_size"),
            rollouts=said_of(args, "ramify_rollouts") or "leaf",
            mean=mean_of(args),
            reward_key=said_of(args, "reward_key"),
            eval_reward_key=said_of(args, "eval_reward_key") or said_of(args, "reward_key"),
            rm_path=said_of(args, "custom_rm_path"),
            rm_type=(said_of(args, "rm_type") or "").strip() or None,
            filter_path=said_of(args, "dynamic_sampling_filter_path"),
            sample_filter_path=said_of(args, "rollout_sample_filter_path"),
            all_samples_path=said_of(args, "rollout_all_samples_process_path"),
            router=_router(args),
            model=said_of(args, "hf_checkpoint"),
            temperature=said_of(args, "rollout_temperature"),
            max_response_tokens=said_of(args, "rollout_max_response_len"),
        )
        _refuse_few_rollouts(args, said)
        return said

    @property
    def has_rm(self) -> bool:
        """Whether the trainer's own reward replaces the TOML's judges."""
        return self.rm_path is not None or self.rm_type is not None


def said_of(args: Any, name: str) -> Any:
    """The argument of this name; None = there is none."""
    return getattr(args, name, None)


def mean_of(args: Any) -> Mean:
    return said_of(args, "ramify_mean") or "tokens"


def loaded(path: str) -> Callable[..., Any]:
    """The function at a dotted path, as the trainer loads them. Raises `ConfigError`."""
    found = plugins.located("function", path)
    if not callable(found):
        raise ConfigError(f"{path!r} is {found!r:.80}, not a function")
    return found


def _config(args: Any) -> Path:
    named = said_of(args, "ramify_config") or os.environ.get(CONFIG_VARIABLE)
    if not named:
        raise ConfigError(
            "no TOML says how trees grow; put `ramify_config: /path/run.toml` into the YAML file of "
            f"--custom-config-path, or set {CONFIG_VARIABLE}"
        )
    return Path(named)


def _router(args: Any) -> str | None:
    ip, port = said_of(args, "sglang_router_ip"), said_of(args, "sglang_router_port")
    return None if ip is None or port is None else f"http://{ip}:{port}"


def refuse_sets(args: Any) -> None:
    """Raise `ConfigError` for evaluation sets that would be answered in another way than they say."""
    named = said_of(args, "eval_datasets") or ()
    if named:
        _refuse(args, EVAL_REFUSED)
    for dataset in named:
        for name, allowed, why in SET_REFUSED:
            if (value := said_of(dataset, name)) not in allowed:
                where = f"set {said_of(dataset, 'name')!r} of --eval-config"
                raise ConfigError(f"{where}: {name} = {value!r} is not supported: {why}")


def _refuse(args: Any, refused: Refusals) -> None:
    for name, allowed, why in refused:
        if (value := said_of(args, name)) not in allowed:
            flag = f"--{name.replace('_', '-')}"
            raise ConfigError(f"{flag} = {value!r} is not supported: {why}")


def _refuse_few_rollouts(args: Any, said: SlimeArgs) -> None:
    """Refuse to make a tree one rollout if the trainer would fail later: for lack of rollouts, or on its rewards."""
    if said.rollouts == "tree" and trainer() == "miles":
        raise ConfigError("ramify_rollouts = 'tree': miles takes one reward per rollout: use 'leaf'")
    step = said_of(args, "global_batch_size")
    if said.rollouts == "tree" and step is not None and said.num_groups is not None and step > said.num_groups:
        raise ConfigError(
            f"global_batch_size = {step!r} rollouts a step, and where a tree is one rollout a batch has "
            f"rollout_batch_size = {said.num_groups!r}; set at most so many"
        )


def checked_size(groups: Sequence[Sequence[Any]], num_samples: int | None) -> int:
    """The common size of all groups. Raises `ConfigError` if sizes differ, or differ from `num_samples`."""
    sizes = {len(group) for group in groups} | ({num_samples} if num_samples is not None else set())
    if len(sizes) != 1 or 0 in sizes:
        raise ConfigError(f"the data source gave groups of {sorted(sizes)} samples; each needs n_samples_per_prompt")
    return sizes.pop()
