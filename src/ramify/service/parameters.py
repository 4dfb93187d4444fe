"""Parameters: the names that slime's users know, and what each is here.

Owns one table (docs/pool.md shows it, and a test holds the page to it): a name becomes settings of ours, or stays the
trainer's and has no effect here, or is refused with what to use in its place. Names and defaults are those of
THUDM/slime: slime/utils/arguments.py and slime/backends/sglang_utils/arguments.py. Nothing is dropped in silence: an
unknown name, and a refused one that is set to anything but its default, raise `ConfigError`.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from ramify.core.errors import ConfigError, nearest
from ramify.service.parameter import (
    EVAL,
    Parameter,
    colocated,
    eval_paths,
    external_engines,
    flag,
    function,
    metadata,
    of_eval,
    over_sampling,
    per_engine,
    refused,
    router_ip,
    router_port,
    setting,
    several,
    template_variables,
    trainer,
    trainer_cards,
)

ROLLOUT: Final = "slime.rollout.sglang_rollout.generate_rollout"
"""What `rollout_function` is without being set: trees are grown."""
SOURCE: Final = "slime.rollout.data_source.RolloutDataSourceWithBuffer"
LABEL: Final = "answer"
"""The key of a data file's secret that holds the gold answer (`tasks/data.py`)."""


def settings_of(args: Mapping[str, Any]) -> dict[str, Any]:
    """Our settings, by dotted path, for arguments by slime's names; `rollout-batch-size` is `rollout_batch_size`. What
    is None counts as not given.

    Raises `ConfigError` for an unknown name (naming the nearest), for a refused one that is not at its default, for a
    value that nothing can be made of, and where two names say different things.
    """
    given = _given(args)
    unknown = sorted(given.keys() - PARAMETERS.keys())
    if unknown and unknown[0].startswith("sglang_"):
        raise ConfigError(f"unknown parameter {unknown[0]!r}; SGLang's own flags go into engine.server.arguments")
    if unknown:
        raise ConfigError(f"unknown parameter {unknown[0]!r}; {nearest(unknown[0], PARAMETERS)}")
    settings: dict[str, Any] = {}
    owners: dict[str, str] = {}
    for name, value in given.items():
        for path, ours in _translated(name, value, given).items():
            if settings.setdefault(path, ours) != ours:
                raise ConfigError(
                    f"{owners[path]} and {name} say different things of {path}: {settings[path]!r} and {ours!r}"
                )
            owners.setdefault(path, name)
    return settings


def _translated(name: str, value: Any, given: Mapping[str, Any]) -> Mapping[str, Any]:
    try:
        return PARAMETERS[name].translate(value, given)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"{name} = {value!r} cannot be read ({error}); its default is {PARAMETERS[name].default!r}"
        ) from None


def _given(args: Mapping[str, Any]) -> dict[str, Any]:
    given: dict[str, Any] = {}
    for name, value in args.items():
        plain = name.lstrip("-").replace("-", "_")
        if plain in given:
            raise ConfigError(f"{plain} is given twice")
        if value is not None:
            given[plain] = value
    return given


_CARDS: Final = (
    setting("rollout_num_gpus", None, "service.pool.num_gpus", "of all engines together"),
    several(
        "rollout_num_gpus_per_engine",
        1,
        ("service.pool.num_gpus_per_engine", "service.pool.gpu_fraction"),
        "whole cards; below 1 (0.2 in slime's walkthrough) it is the share of one card that Ray is asked for",
        per_engine,
    ),
    setting("num_gpus_per_node", 8, "service.pool.num_gpus_per_node"),
    setting("rollout_num_gpus_per_node", 8, "service.pool.num_gpus_per_node", "the older name"),
    several(
        "colocate",
        False,
        ("service.pool.colocate", "service.pool.num_gpus"),
        "engines and trainer take turns on the same cards: the trainer's, unless `rollout_num_gpus` says how many",
        colocated,
    ),
    trainer("offload", False, "the trainer calls `offload` and `onload` between its steps"),
    trainer("offload_rollout", None, "the trainer calls `offload` and `onload` between its steps"),
    trainer("offload_train", None, "of the trainer's own memory"),
    several("actor_num_nodes", 1, ("service.pool.num_trainer_gpus",), "the product of the two", trainer_cards),
    several("actor_num_gpus_per_node", 8, ("service.pool.num_trainer_gpus",), "the product of the two", trainer_cards),
    setting("hf_checkpoint", None, "engine.model", "the model's folder or name"),
    setting("sglang_dp_size", 1, "service.pool.data_parallel"),
    setting("rollout_max_context_len", None, "engine.server.max_model_len"),
    several(
        "rollout_external_engine_addrs",
        None,
        ("engine.base_url",),
        "engines that are up already; `host:port` is read as http",
        external_engines,
    ),
    trainer("use_fault_tolerance", False, "always on: a dead engine is started again and given the weights"),
    refused("rollout_health_check_interval", 30.0, "servers are asked every 5 s (docs/serving.md)"),
    refused("rollout_health_check_timeout", 30.0, "three silences of 20 s and a server is down (docs/serving.md)"),
    refused("rollout_health_check_first_wait", 0, "a server is asked once it was ready, `engine.server.start_s`"),
)
_ROUTER: Final = (
    several(
        "sglang_router_ip",
        None,
        ("service.pool.router", "service.pool.router_ip"),
        "a router that is up already: the engines are told to it; None = requests are placed without one",
        router_ip,
    ),
    several(
        "sglang_router_port",
        None,
        ("service.pool.router", "service.pool.router_port"),
        "of that router, or, without `sglang_router_ip`, of one that is started",
        router_port,
    ),
    setting("sglang_router_request_timeout_secs", 14400, "service.pool.router_timeout_s"),
    refused("router_policy", None, "`engine.placement` places requests, or `ramify serve --policy` of a router"),
)
_FUNCTIONS: Final = (
    several(
        "rollout_function_path",
        ROLLOUT,
        ("service.rollout_function",),
        "a dotted path or `file.py:function`; slime's own default is what is done without one: trees are grown",
        function("service.rollout_function", ROLLOUT),
    ),
    setting("eval_function_path", None, "service.eval_function"),
    setting("custom_rm_path", None, "service.reward_function", "in place of the task's judges"),
    setting("dynamic_sampling_filter_path", None, "service.group_filter", "`mixed` is built in"),
    setting("buffer_filter_path", None, "service.buffer_filter"),
    setting("rollout_sample_filter_path", None, "service.sample_filter"),
    setting("custom_convert_samples_to_train_data_path", None, "service.convert_function"),
    refused("custom_reward_post_process_path", None, "advantages come from the tree: name a `credit`"),
    refused("custom_generate_function_path", None, "write a strategy, a format or a task, or a rollout function"),
    refused("rollout_sample_hook_path", None, "name a `service.reward_function`, which sees every sample"),
    refused("rollout_all_samples_process_path", None, "the store keeps all trees, those that were filtered too"),
    refused("data_source_path", SOURCE, "name a `task` (`file.py:Class`) or `data.path` for other problems"),
    refused("group_rm", False, "a judge scores a path; a `service.convert_function` sees groups"),
    refused("rm_type", None, "name a `task` with its judge, or a `service.reward_function`"),
    refused("rm_url", None, "write a `service.reward_function` that asks it"),
    setting("reward_key", None, "service.reward_key", "the part of a reward that is trained"),
    refused("eval_reward_key", None, "evaluations report what is trained: `service.reward_key`"),
)
_SAMPLING: Final = (
    setting("rollout_batch_size", None, "service.batch_size", "groups of a batch; a group is one tree"),
    several(
        "n_samples_per_prompt",
        1,
        ("strategy.options.n", "service.rows_per_group"),
        "so many chains, and so many rows of each group; strategies of trees have other options than `n`",
        lambda value, args: {"strategy.options.n": value, "service.rows_per_group": value},
    ),
    several(
        "over_sampling_batch_size",
        None,
        ("service.over_sampling",),
        "less `rollout_batch_size`: groups begun beyond those a batch needs",
        over_sampling,
    ),
    setting("rollout_seed", 42, "seed", "of everything that is drawn, the order of problems included"),
    setting("rollout_shuffle", False, "service.shuffle"),
    setting("rollout_temperature", 1.0, "actions.policy.sampling.temperature"),
    setting("rollout_top_p", 1.0, "actions.policy.sampling.top_p"),
    setting("rollout_top_k", -1, "actions.policy.sampling.top_k", "-1 is 0 here", by=lambda value: max(value, 0)),
    setting(
        "rollout_max_response_len",
        None,
        "growth.max_response_tokens",
        "of a whole path, observations included",
    ),
    refused("rollout_max_prompt_len", None, "leave long questions out of the file"),
    refused("rollout_stop", None, "the `format` says where a step ends"),
    refused("rollout_stop_token_ids", None, "the `format` says where a step ends"),
    trainer("rollout_skip_special_tokens", False, "tokens are kept as ids, none is skipped"),
    several(
        "partial_rollout",
        False,
        ("service.on_update",),
        "`keep`: turns are cut when weights are loaded and go on under the new ones; else `abort`: sampled anew",
        lambda value, args: {"service.on_update": "keep" if value else "abort"},
    ),
    flag(
        "mask_offpolicy_in_partial_rollout",
        "service.on_stale",
        "mask",
        "`mask`: tokens further behind than `service.max_staleness` are not trained",
    ),
)
_DATA: Final = (
    setting("prompt_data", None, "data.path", "a file or folder of questions; `task.name` is then `data`"),
    setting("input_key", "input", "data.question"),
    several(
        "label_key",
        None,
        ("data.answer", "service.label_key"),
        "the gold answer: for judges, and as `sample.label` for functions",
        lambda value, args: {"data.answer": value, "service.label_key": LABEL},
    ),
    several(
        "metadata_key", "metadata", ("data.public",), "the only column that goes along to every row; else all", metadata
    ),
    flag("apply_chat_template", "format", "chat", "`chat`, by the template of the engine's model"),
    several("apply_chat_template_kwargs", {}, ("format_options.variables",), "only with `chat`", template_variables),
    refused("tool_key", "tools", "name tools under `tools.use`, for all problems"),
    refused("multimodal_keys", None, "questions are text"),
    trainer("rollout_global_dataset", True, "problems come from `task` or `data.path`"),
)
_EVAL: Final = (
    several(
        "eval_prompt_data",
        None,
        (f"{EVAL}.data.path", f"{EVAL}.data.question", f"{EVAL}.data.answer"),
        "name, path, name, path …; columns as for training unless `eval_input_key` and `eval_label_key` differ",
        eval_paths,
    ),
    of_eval("n_samples_per_eval_prompt", 1, "repeats", "answers to each problem"),
    of_eval("eval_input_key", None, "data.question"),
    of_eval("eval_label_key", None, "data.answer"),
    trainer("eval_interval", None, "the training loop calls `eval` when it wants one"),
    trainer("skip_eval_before_train", False, "the training loop calls `eval` when it wants one"),
    refused("eval_config", None, "write the data sets as `[service.eval.NAME]`"),
    refused("eval_temperature", None, "evaluations sample as the run does; evaluate by `ramify eval` otherwise"),
    refused("eval_top_p", None, "as `eval_temperature`"),
    refused("eval_top_k", None, "as `eval_temperature`"),
    refused("eval_max_response_len", None, "as `eval_temperature`"),
)
_LOOP: Final = (
    trainer("num_rollout", None, "the training loop asks for as many batches as it wants"),
    trainer("num_epoch", None, "the training loop asks for as many batches as it wants"),
    trainer("start_rollout_id", None, "the training loop says which batch it asks for"),
    setting(
        "global_batch_size",
        None,
        "service.global_batch_size",
        "rows of one training step: what a rollout's number is turned into training steps by",
    ),
    trainer("num_steps_per_rollout", None, "the trainer cuts a batch into steps"),
    trainer("load", None, "the trainer calls `load(rollout_id)`"),
    trainer("save", None, "the trainer calls `save(rollout_id)`"),
    trainer("save_interval", None, "the trainer calls `save(rollout_id)`"),
    trainer("seed", 1234, "the trainer's; `rollout_seed` is the run's"),
    trainer("update_weights_interval", 1, "the trainer says when there are new weights"),
    trainer("balance_data", False, "the trainer shares rows out among its ranks"),
)
_DEBUG: Final = (
    setting("save_debug_rollout_data", None, "service.save_debug", "a path with {rollout_id} and the ending .jsonl"),
    several(
        "load_debug_rollout_data",
        None,
        ("service.load_debug", "service.debug"),
        "batches that were saved so, in place of generating; as in slime, no engine is started then",
        lambda value, args: {"service.load_debug": value, "service.debug": "train_only"},
    ),
    refused("load_debug_rollout_data_subsample", None, "shorten the files"),
    flag("debug_rollout_only", "service.debug", "rollout_only", "`rollout_only`"),
    flag("debug_train_only", "service.debug", "train_only", "`train_only`"),
)
_TRACKER: Final = (
    flag("use_wandb", "service.trackers.wandb.kind", "wandb", "`wandb`"),
    flag("use_tensorboard", "service.trackers.tensorboard.kind", "tensorboard", "`tensorboard`"),
    setting("wandb_project", None, "service.trackers.wandb.project"),
    setting("wandb_group", None, "service.trackers.wandb.group"),
    setting("wandb_run_id", None, "service.trackers.wandb.run_id", "joins a run of the trainer"),
    flag(
        "wandb_always_use_train_step",
        "service.always_train_step",
        True,
        "figures are plotted over training steps, which needs `global_batch_size`",
    ),
    refused("wandb_key", None, "log in by `wandb login`, or set WANDB_API_KEY: no key belongs into a configuration"),
)

GROUPS: Final[Mapping[str, tuple[Parameter, ...]]] = MappingProxyType(
    {
        "Cards and engines": _CARDS,
        "Router": _ROUTER,
        "Functions": _FUNCTIONS,
        "Sampling": _SAMPLING,
        "Problems": _DATA,
        "Evaluation": _EVAL,
        "Training loop": _LOOP,
        "Debugging": _DEBUG,
        "Tracking": _TRACKER,
    }
)
PARAMETERS: Final[Mapping[str, Parameter]] = MappingProxyType(
    {parameter.name: parameter for group in GROUPS.values() for parameter in group}
)
