"""The rollout service: batches of trees for a trainer, for days, without losing work.

May import every room but `integrations`, `train`, `view` and `cli`. Read `manager.py` first, then `controller.py`.
"""
