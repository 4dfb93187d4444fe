"""MCTS Self-Refine: a tree of whole answers, each refined from the one above it. Begin with `search.py`."""

from ramify.strategies.mctsr.search import MCTSr

__all__ = ["MCTSr"]
