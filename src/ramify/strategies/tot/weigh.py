"""Shared by both searches of Tree of Thoughts: how paths grow, and the values of what has grown."""

from typing import Protocol

from ramify.core.tree import Tree
from ramify.strategies.parts.expansion import Child, Expansion, Expansions
from ramify.strategies.tot.values import DuplicateValue, duplicate_value


class LevelGrowth(Protocol):
    """The part of the configuration that says how paths grow and are judged."""

    @property
    def width(self) -> int: ...
    @property
    def num_levels(self) -> int: ...
    @property
    def action(self) -> str: ...
    @property
    def judge(self) -> str: ...
    @property
    def duplicate_value(self) -> DuplicateValue: ...


def weighed(
    tree: Tree, expansion: Expansion, expansions: Expansions, rule: DuplicateValue
) -> list[tuple[Child, float]]:
    """The children with a value, in the order asked."""
    found: list[tuple[Child, float]] = []
    for child in expansion.grown:
        value = expansions.value(tree, child)
        if child.twin is not None:
            value = duplicate_value(rule, value, expansions.value(tree, child.twin))
        if value is not None:
            found.append((child, value))
    return found
