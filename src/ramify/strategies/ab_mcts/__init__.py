"""AB-MCTS: search that is free to widen or deepen at every answer; the variants A (`a.py`) and M (`m.py`)."""

from ramify.strategies.ab_mcts.a import ABMCTS

__all__ = ["ABMCTS"]
