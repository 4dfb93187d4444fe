"""What slime (THUDM/slime) loads by dotted path to train on trees. Begin with `functions.py`; see docs/slime.md.

It may import whatever the service may. slime itself is imported only where a trainer has loaded it.
"""

from ramify.integrations.slime.functions import (
    advantages,
    convert_samples_to_train_data,
    generate_rollout,
    post_process_rewards,
)

__all__ = ["advantages", "convert_samples_to_train_data", "generate_rollout", "post_process_rewards"]
