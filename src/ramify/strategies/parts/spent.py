"""Spent: whether a growth shows that nothing more can grow on its tree."""

from ramify.core.tree import Tree


def is_spent(tree: Tree, tip: int) -> bool:
    """Whether the deadline of the tree cut this growth, or its budget did before the first token: whatever is asked for
    next would end there too."""
    stop = tree.stop(tip)
    return stop == "deadline" or (stop == "budget" and not tree.num_sampled(tip))
