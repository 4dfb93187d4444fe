"""MCTS over steps or segments: one search whose parts are chosen by its configuration. Begin with `search.py`."""

from ramify.strategies.mcts.search import MCTS

__all__ = ["MCTS"]
