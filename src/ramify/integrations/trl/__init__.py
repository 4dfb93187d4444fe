"""TRL: a `GRPOTrainer` whose batches are rollout trees, with an advantage for every token. See docs/guides/trl.md.

May import what `integrations` may, and TRL and torch. Read `trainer.py` first.
"""

from ramify.integrations.trl.trainer import TreeGRPOTrainer

__all__ = ["TreeGRPOTrainer"]
