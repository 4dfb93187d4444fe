"""The rollout service: many trees for a trainer, for days, without losing work."""
