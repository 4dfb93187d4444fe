"""View: shows a tree in the terms of the method that grew it, by pure functions of a finished or stored tree.

It may import every room except `cli`, and needs only `core` and `strategies`. Read `valued.py` first.
"""

from ramify.view.mctsr import MCTSrNode, MCTSrTrace, mctsr, mctsr_nodes, mctsr_trace
from ramify.view.rstar import RStarNode, RStarReading, rstar, rstar_nodes
from ramify.view.valued import ValuedNode, ValuedTree, valued

__all__ = [
    "MCTSrNode",
    "MCTSrTrace",
    "RStarNode",
    "RStarReading",
    "ValuedNode",
    "ValuedTree",
    "mctsr",
    "mctsr_nodes",
    "mctsr_trace",
    "rstar",
    "rstar_nodes",
    "valued",
]
