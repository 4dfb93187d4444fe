"""View: shows runs in a browser, and trees as pictures or in the terms of the method that grew them.

Nothing of a run is executed. It may import the rooms that grow and store runs, and `experiments`. Read `documents.py`
for the page, whose modules are in `static`, and `valued.py` for trees in the terms of a method.
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
