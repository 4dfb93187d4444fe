"""AB-MCTS: at each answer the search may widen or deepen. Variant A is in `a.py`, variant M in `m.py`."""

from ramify.strategies.ab_mcts.a import ABMCTS

__all__ = ["ABMCTS"]
