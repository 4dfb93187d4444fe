# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
# verl is not in the development environment.
"""Registered: what verl finds under the name `ramify`: the estimator that hands our advantages on, and verl's own PPO
loss behind a check of the settings by which it would train something else.

Source: verl 0.9.1, verl/trainer/ppo/core_algos.py `register_adv_est`, `register_policy_loss` and
`compute_policy_loss_vanilla`.
"""

from collections.abc import Iterator
from typing import Any, Final

from ramify.core.errors import ConfigError

NAME: Final = "ramify"
"""Of the estimator and of the loss."""
EXACT_MODE: Final = "seq-mean-token-sum"
"""The reduction that divides by the number of rows, which is the same in every batch."""


def register() -> None:
    """Register both with verl. Can be called again."""
    from verl.trainer.ppo.core_algos import register_adv_est, register_policy_loss

    register_adv_est(NAME)(tree_advantages)
    register_policy_loss(NAME)(tree_policy_loss)


def tree_advantages(token_level_rewards: Any, response_mask: Any, config: Any = None, **_: Any) -> tuple[Any, Any]:
    """`algorithm.adv_estimator = ramify`: (advantages, returns), (B, R) both: what `rm_scores` holds of each token that
    is trained. Mutates nothing. Raises `ConfigError` for settings of verl's `algorithm` by which that is not all that
    is trained."""
    for problem in _of_algorithm(config):
        raise ConfigError(problem)
    advantages = token_level_rewards * response_mask
    return advantages, advantages


def tree_policy_loss(
    old_log_prob: Any,
    log_prob: Any,
    advantages: Any,
    response_mask: Any,
    loss_agg_mode: str = "token-mean",
    config: Any = None,
    rollout_is_weights: Any = None,
) -> tuple[Any, dict[str, Any]]:
    """`actor.policy_loss.loss_mode = ramify`: verl's `vanilla` loss. Raises `ConfigError` for settings of verl's
    `actor` by which tokens would not be trained with their credit."""
    from verl.trainer.ppo.core_algos import compute_policy_loss_vanilla

    for problem in _of_actor(loss_agg_mode, config):
        raise ConfigError(problem)
    return compute_policy_loss_vanilla(
        old_log_prob, log_prob, advantages, response_mask, loss_agg_mode, config, rollout_is_weights
    )


def _of_algorithm(config: Any) -> Iterator[str]:
    if getattr(config, "use_kl_in_reward", False):
        yield "algorithm.use_kl_in_reward = True: the penalty would change the advantages; set False"
    if getattr(getattr(config, "filter_groups", None), "enable", False):
        yield "algorithm.filter_groups.enable = True: groups would be left out by their rewards; set False"
    correction = getattr(config, "rollout_correction", None)
    if getattr(correction, "rollout_is", None) == "sequence":
        yield "rollout_correction.rollout_is = 'sequence': a ratio belongs to a leaf, not to a token; set 'token'"
    if (rejects := getattr(correction, "rollout_rs", None)) is not None:
        yield f"rollout_correction.rollout_rs = {rejects!r}: rows would be left out; set null"


def _of_actor(mode: str, config: Any) -> Iterator[str]:
    if mode != EXACT_MODE:
        yield f"actor.loss_agg_mode = {mode!r}: it divides by a number of tokens; set {EXACT_MODE!r}"
    if getattr(config, "use_kl_loss", False):
        yield "actor.use_kl_loss = True: the term would be added once a row, not once a token of the tree; set False"
    if getattr(config, "entropy_coeff", 0):
        yield f"actor.entropy_coeff = {config.entropy_coeff!r}: its mean is over rows, not tokens of the tree; set 0"
