"""MCTS Self-Refine: a tree of whole answers. Each answer refines the one above it. Start with `search.py`."""

from ramify.strategies.mctsr.search import MCTSr

__all__ = ["MCTSr"]
