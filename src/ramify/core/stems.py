"""Stems: to which of a method's trees a path from the bare prompt belongs.

A stem is a root branch. A problem grows one tree. What papers call its M trees are M children of the root, numbered in
order of request. If a method expands such a tree at its own root (Tree-GRPO), the new path is a child of the root too,
and the rule of its decision names the tree it belongs to. Every other stem is a tree of its own.
"""

from ramify.core.tree import Tree


def joining(rule: str, number: int) -> str:
    """Name of `rule` for a decision at the root whose stems belong to tree `number`."""
    return f"{rule}/{number}"


def tree_number(tree: Tree, stem: int) -> int:
    """Number of the tree that `stem`, a child of the root, belongs to."""
    fork = tree.fork(stem)
    _, slash, number = fork.rule.rpartition("/") if fork is not None else ("", "", "")
    return int(number) if slash and number.isdecimal() else tree.index(stem)
