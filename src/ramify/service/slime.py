"""The old place of `ramify.integrations.slime`, kept for one version: trainers' command lines name it."""

from ramify.integrations.slime import (
    advantages,
    convert_samples_to_train_data,
    generate_rollout,
    post_process_rewards,
)

__all__ = ["advantages", "convert_samples_to_train_data", "generate_rollout", "post_process_rewards"]
