"""verl: its rollouts as trees, and an advantage estimator and a policy loss under the name `ramify`. See
docs/coming-from/verl.md.

May import what `integrations` may, and verl. verl itself imports this room: `VERL_USE_EXTERNAL_MODULES`. Read
`agent_loop.py` first.
"""

from ramify.integrations.verl.registered import register, tree_advantages, tree_policy_loss

__all__ = ["register", "tree_advantages", "tree_policy_loss"]

register()
