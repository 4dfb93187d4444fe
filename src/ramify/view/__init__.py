"""View: a tree told in the words of the methods it was grown by. Pure functions of a finished or stored tree."""

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
