"""View: shows a tree as a picture or in the terms of the method that grew it, by pure functions of a stored tree.

It may import every room except `cli`, and needs only `core` and `strategies`. Read `valued.py` first.
"""

from ramify.view.mctsr import MCTSrNode, MCTSrTrace, mctsr, mctsr_nodes, mctsr_trace
from ramify.view.node_text import NodeText, node_text
from ramify.view.rstar import RStarNode, RStarReading, rstar, rstar_nodes
from ramify.view.tree_svg import tree_svg
from ramify.view.valued import ValuedNode, ValuedTree, valued

__all__ = [
    "MCTSrNode",
    "MCTSrTrace",
    "NodeText",
    "RStarNode",
    "RStarReading",
    "ValuedNode",
    "ValuedTree",
    "mctsr",
    "mctsr_nodes",
    "mctsr_trace",
    "node_text",
    "rstar",
    "rstar_nodes",
    "tree_svg",
    "valued",
]
