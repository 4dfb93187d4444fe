"""Tree of Thoughts, breadth first and depth first. Start with `search.py`."""

from ramify.strategies.tot.search import ToT

__all__ = ["ToT"]
