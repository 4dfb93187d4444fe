"""View: a tree told in the words of the methods it was grown by. Pure functions of a finished or stored tree."""

from ramify.view.mctsr import MCTSrNode, MCTSrTrace, mctsr, mctsr_trace
from ramify.view.rstar import RStarNode, RStarReading, rstar, rstar_nodes

__all__ = ["MCTSrNode", "MCTSrTrace", "RStarNode", "RStarReading", "mctsr", "mctsr_trace", "rstar", "rstar_nodes"]
