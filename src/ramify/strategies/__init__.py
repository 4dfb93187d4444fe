"""Strategies: one file each, and the shared arithmetic beside them as named functions."""

from ramify.strategies.ab_mcts import ABMCTS
from ramify.strategies.ab_mcts_m import ABMCTSM
from ramify.strategies.at2po import AT2PO
from ramify.strategies.beam import Beam
from ramify.strategies.best_first import BestFirst
from ramify.strategies.best_of_n import BestOfN
from ramify.strategies.chains import Chains
from ramify.strategies.deepsearch import DeepSearch
from ramify.strategies.dvts import DVTS
from ramify.strategies.lats import LATS
from ramify.strategies.mcts import MCTS
from ramify.strategies.mctsr import MCTSr
from ramify.strategies.offline import Offline
from ramify.strategies.online import Online
from ramify.strategies.particle_filter import ParticleFilter
from ramify.strategies.rap import RAP
from ramify.strategies.rebase import Rebase
from ramify.strategies.refine_chain import RefineChain
from ramify.strategies.reject import Reject
from ramify.strategies.rstar_mcts import RStarMCTS
from ramify.strategies.segments import Segments
from ramify.strategies.tot import ToT
from ramify.strategies.tree_grpo import TreeGRPO
from ramify.strategies.treepo import TreePO
from ramify.strategies.treerl import TreeRL

STRATEGIES = {
    "ab_mcts": "ramify.strategies.ab_mcts:ABMCTS",
    "ab_mcts_m": "ramify.strategies.ab_mcts_m:ABMCTSM",
    "at2po": "ramify.strategies.at2po:AT2PO",
    "beam": "ramify.strategies.beam:Beam",
    "best_first": "ramify.strategies.best_first:BestFirst",
    "best_of_n": "ramify.strategies.best_of_n:BestOfN",
    "chains": "ramify.strategies.chains:Chains",
    "deepsearch": "ramify.strategies.deepsearch:DeepSearch",
    "dvts": "ramify.strategies.dvts:DVTS",
    "lats": "ramify.strategies.lats:LATS",
    "mcts": "ramify.strategies.mcts:MCTS",
    "mctsr": "ramify.strategies.mctsr:MCTSr",
    "offline": "ramify.strategies.offline:Offline",
    "online": "ramify.strategies.online:Online",
    "particle_filter": "ramify.strategies.particle_filter:ParticleFilter",
    "rap": "ramify.strategies.rap:RAP",
    "rebase": "ramify.strategies.rebase:Rebase",
    "refine_chain": "ramify.strategies.refine_chain:RefineChain",
    "reject": "ramify.strategies.reject:Reject",
    "rstar_mcts": "ramify.strategies.rstar_mcts:RStarMCTS",
    "segments": "ramify.strategies.segments:Segments",
    "tot": "ramify.strategies.tot:ToT",
    "tree_grpo": "ramify.strategies.tree_grpo:TreeGRPO",
    "treepo": "ramify.strategies.treepo:TreePO",
    "treerl": "ramify.strategies.treerl:TreeRL",
}
"""Built-in strategies by name."""

__all__ = [
    "ABMCTS",
    "ABMCTSM",
    "AT2PO",
    "DVTS",
    "LATS",
    "MCTS",
    "RAP",
    "STRATEGIES",
    "Beam",
    "BestFirst",
    "BestOfN",
    "Chains",
    "DeepSearch",
    "MCTSr",
    "Offline",
    "Online",
    "ParticleFilter",
    "RStarMCTS",
    "Rebase",
    "RefineChain",
    "Reject",
    "Segments",
    "ToT",
    "TreeGRPO",
    "TreePO",
    "TreeRL",
]
