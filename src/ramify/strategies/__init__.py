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
from ramify.strategies.planned import Planned
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

__all__ = [
    "ABMCTS",
    "ABMCTSM",
    "AT2PO",
    "DVTS",
    "LATS",
    "MCTS",
    "RAP",
    "Beam",
    "BestFirst",
    "BestOfN",
    "Chains",
    "DeepSearch",
    "MCTSr",
    "Offline",
    "Online",
    "ParticleFilter",
    "Planned",
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
