"""MCTS over steps or segments; the configuration selects its parts. Start with `search.py`."""

from ramify.strategies.mcts.search import MCTS

__all__ = ["MCTS"]
