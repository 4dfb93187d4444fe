"""Strategies: one file each, and the shared arithmetic beside them as named functions."""

from ramify.strategies.at2po import AT2PO
from ramify.strategies.best_of_n import BestOfN
from ramify.strategies.chains import Chains
from ramify.strategies.deepsearch import DeepSearch
from ramify.strategies.offline import Offline
from ramify.strategies.online import Online
from ramify.strategies.segments import Segments
from ramify.strategies.tree_grpo import TreeGRPO
from ramify.strategies.treepo import TreePO
from ramify.strategies.treerl import TreeRL

STRATEGIES = {
    "at2po": "ramify.strategies.at2po:AT2PO",
    "best_of_n": "ramify.strategies.best_of_n:BestOfN",
    "chains": "ramify.strategies.chains:Chains",
    "deepsearch": "ramify.strategies.deepsearch:DeepSearch",
    "offline": "ramify.strategies.offline:Offline",
    "online": "ramify.strategies.online:Online",
    "segments": "ramify.strategies.segments:Segments",
    "tree_grpo": "ramify.strategies.tree_grpo:TreeGRPO",
    "treepo": "ramify.strategies.treepo:TreePO",
    "treerl": "ramify.strategies.treerl:TreeRL",
}
"""Built-in strategies by name."""

__all__ = [
    "AT2PO",
    "STRATEGIES",
    "BestOfN",
    "Chains",
    "DeepSearch",
    "Offline",
    "Online",
    "Segments",
    "TreeGRPO",
    "TreePO",
    "TreeRL",
]
