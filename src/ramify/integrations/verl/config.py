"""verl config: what verl's configuration sets of a run, and what of it would train something else.

The run is a TOML file, `actor_rollout_ref.rollout.agent.agent_loop_config_path`. See `integrations/trainer_config.py`.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from ramify.config.run_config import RunConfig
from ramify.core.errors import ConfigError
from ramify.integrations.evaluation import EvalSampling
from ramify.integrations.trainer_config import MAX_RESPONSE, TEMPERATURE, filled, is_chains, said_in
from ramify.integrations.verl.registered import NAME

PATH: Final = "actor_rollout_ref.rollout.agent.agent_loop_config_path"


def training_config(config: Any) -> RunConfig:
    """The configuration of the run that makes verl's training batches. Raises `ConfigError`."""
    for problem in _problems(config):
        raise ConfigError(problem)
    rollout = config.actor_rollout_ref.rollout
    path = Path(rollout.agent.agent_loop_config_path)
    said = said_in(path)
    return filled(
        path, said, _set(said, rollout), temperature=rollout.temperature, named="actor_rollout_ref.rollout.temperature"
    )


def validation_sampling(config: Any, num_samples: int) -> EvalSampling:
    """How verl's validation questions are sampled."""
    law = config.actor_rollout_ref.rollout.val_kwargs
    return EvalSampling(
        num_samples=num_samples,
        temperature=law.temperature if law.do_sample else 0.0,
        top_p=law.top_p,
        top_k=max(0, law.top_k),
    )


def _set(said: Mapping[str, Any], rollout: Any) -> Iterator[tuple[str, Any]]:
    """(dotted path, value) of what verl's configuration sets."""
    yield "task.name", "data"
    yield TEMPERATURE, rollout.temperature
    yield MAX_RESPONSE, rollout.response_length
    if is_chains(said):
        yield "strategy.options.n", rollout.n


def _problems(config: Any) -> Iterator[str]:
    rollout, algorithm, actor = config.actor_rollout_ref.rollout, config.algorithm, config.actor_rollout_ref.actor
    if not rollout.agent.get("agent_loop_config_path"):
        yield f"{PATH} is not set: name the TOML file of the run"
    if rollout.name not in ("vllm", "sglang"):
        yield f"actor_rollout_ref.rollout.name = {rollout.name!r}: trees are grown by vllm and sglang"
    if algorithm.adv_estimator != NAME:
        yield (
            f"algorithm.adv_estimator = {algorithm.adv_estimator!r}: it would compare the credits of tokens as if they "
            f"were rewards; set {NAME!r}"
        )
    if (mode := actor.policy_loss.loss_mode) != NAME:
        yield f"actor_rollout_ref.actor.policy_loss.loss_mode = {mode!r}: set {NAME!r}, verl's own loss behind a check"
    if rollout.top_p != 1 or rollout.top_k > 0:
        yield (
            f"actor_rollout_ref.rollout.top_p = {rollout.top_p!r}, top_k = {rollout.top_k!r}: the trainer computes "
            "logprobs of the whole distribution; set 1 and -1"
        )
