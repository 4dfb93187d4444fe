"""Credit: a tree -> a coefficient for every sampled token. Pure numpy; says which forks it is exact for."""

from ramify.credit.choose import AUTO, CREDITS, NAMES, Credit, Credited, credit
from ramify.credit.clip import ClipParts, clip_parts
from ramify.credit.forest import Forest
from ramify.credit.group import group_advantages, leaf_grpo, leaf_loo, leaf_mean
from ramify.credit.grown import forest_of
from ramify.credit.split import split, split_tree_loo, subtree_loo

__all__ = [
    "AUTO",
    "CREDITS",
    "NAMES",
    "ClipParts",
    "Credit",
    "Credited",
    "Forest",
    "clip_parts",
    "credit",
    "forest_of",
    "group_advantages",
    "leaf_grpo",
    "leaf_loo",
    "leaf_mean",
    "split",
    "split_tree_loo",
    "subtree_loo",
]
