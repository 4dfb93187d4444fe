"""Credit: the advantage estimators. Each maps a tree to a coefficient for every sampled token, and says where it is
exact.

It imports core only; pure numpy. Read `forest` first, then `choose`.
"""

from ramify.core.strategy import PostHocRule
from ramify.credit.at2po import at2po, at2po_as_published
from ramify.credit.balance import balanced, balanced_split, balanced_split_tree_loo
from ramify.credit.choose import AUTO, CREDITS, NAMES, Credit, Credited, credit, measures_of, needs_balance
from ramify.credit.clip import ClipParts, clip_parts
from ramify.credit.deepsearch import deepsearch, deepsearch_as_published
from ramify.credit.forest import Forest
from ramify.credit.group import group_advantages, leaf_grpo, leaf_loo, leaf_mean
from ramify.credit.grown import forest_of
from ramify.credit.own import OwnCredit
from ramify.credit.sibling import ancestor_loo, leaf_tree_loo, sibling_loo, sibling_mean, split_mean
from ramify.credit.split import split, split_tree_loo, subtree_loo
from ramify.credit.spo import spo, spo_as_published
from ramify.credit.tree_grpo import tree_grpo, tree_grpo_as_published
from ramify.credit.treepo import treepo, treepo_as_published
from ramify.credit.treerl import treerl, treerl_as_published
from ramify.credit.treerpo import treerpo
from ramify.credit.vine import vine

__all__ = [
    "AUTO",
    "CREDITS",
    "NAMES",
    "ClipParts",
    "Credit",
    "Credited",
    "Forest",
    "OwnCredit",
    "PostHocRule",
    "ancestor_loo",
    "at2po",
    "at2po_as_published",
    "balanced",
    "balanced_split",
    "balanced_split_tree_loo",
    "clip_parts",
    "credit",
    "deepsearch",
    "deepsearch_as_published",
    "forest_of",
    "group_advantages",
    "leaf_grpo",
    "leaf_loo",
    "leaf_mean",
    "leaf_tree_loo",
    "measures_of",
    "needs_balance",
    "sibling_loo",
    "sibling_mean",
    "split",
    "split_mean",
    "split_tree_loo",
    "spo",
    "spo_as_published",
    "subtree_loo",
    "tree_grpo",
    "tree_grpo_as_published",
    "treepo",
    "treepo_as_published",
    "treerl",
    "treerl_as_published",
    "treerpo",
    "vine",
]
