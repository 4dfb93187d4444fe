"""The functions that slime (THUDM/slime) loads by dotted path to train on trees: docs/guides/slime.md.

May import what `integrations` may, and slime itself only where a trainer has loaded it. Read `functions.py` first.
"""

from ramify.integrations.slime.functions import (
    advantages,
    convert_samples_to_train_data,
    generate_rollout,
    post_process_rewards,
)

__all__ = ["advantages", "convert_samples_to_train_data", "generate_rollout", "post_process_rewards"]
