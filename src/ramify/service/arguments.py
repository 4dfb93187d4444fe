"""Arguments: the `args` that functions with slime's signatures receive: our settings under slime's names."""

from types import SimpleNamespace
from typing import Any

from ramify.config.run_config import RunConfig


def arguments(config: RunConfig) -> SimpleNamespace:
    """Settings as attributes under slime's names, and three of our own. `config` is the whole configuration. `engine`
    samples with the current weights and is paused while they change. `run` has the format, the codec and the task. The
    manager sets `engine` and `run`. User functions may add attributes."""
    service = config.service
    assert service is not None
    policy = config.actions["policy"].sampling
    names: dict[str, Any] = {
        "rollout_batch_size": service.batch_size,
        "over_sampling_batch_size": service.batch_size + service.over_sampling,
        "n_samples_per_prompt": group_size(config) or 1,
        "rollout_seed": config.seed,
        "rollout_shuffle": service.shuffle,
        "rollout_temperature": policy.temperature,
        "rollout_top_p": policy.top_p,
        "rollout_top_k": policy.top_k,
        "rollout_max_response_len": config.growth.max_response_tokens,
        "reward_key": service.reward_key,
        "label_key": service.label_key,
        "loss_mask_type": service.loss_mask_type or "qwen",
        "partial_rollout": service.over_sampling > 0,
        "mask_offpolicy_in_partial_rollout": service.on_stale == "mask",
        "save_debug_rollout_data": service.save_debug,
        "load_debug_rollout_data": service.load_debug,
        "debug_rollout_only": service.debug == "rollout_only",
        "debug_train_only": service.debug == "train_only",
    }
    return SimpleNamespace(**names, config=config, engine=None, run=None)


def group_size(config: RunConfig) -> int | None:
    """Samples in every group; None = each group has as many as its tree has leaves."""
    assert config.service is not None
    is_chains = config.strategy.name == "chains" and config.strategy.options.get("repeat", "none") == "none"
    return config.service.rows_per_group or (config.strategy.options.get("n") if is_chains else None)
