"""Expansion: how many children a place of a Monte Carlo tree search is given at once, by which actions, and whether
they have all come.

While some of them lack, a search may ask for surplus ones (`MCTSConfig.surplus`): what comes when the expansion is
complete was not wanted any more.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ramify.strategies.mcts.config import MCTSConfig
from ramify.strategies.mcts.node import MCTSNode


@dataclass(slots=True, eq=False)
class MCTSExpansion:
    """Children of one place that are still wanted, by action. Mutated by `take` alone."""

    node: MCTSNode
    missing: dict[str, int]

    @property
    def is_complete(self) -> bool:
        return not any(self.missing.values())

    @property
    def next_action(self) -> str:
        """The first that lacks a child."""
        return next(action for action, number in self.missing.items() if number)

    def take(self, action: str) -> bool:
        """Count a child that came; returns whether it was wanted still."""
        if not self.missing[action]:
            return False
        self.missing[action] -= 1
        return True


def num_wanted(config: MCTSConfig, node: MCTSNode, *, left: int) -> int:
    """Children that an expansion of `node` asks for where so many samples are left."""
    if config.widening.kind == "once":
        return min(config.children_at_once - node.num_coming, left)
    return min(config.width, config.widening.most - node.num_coming, left)


def actions_of(config: MCTSConfig, node: MCTSNode, number: int) -> Sequence[str]:
    """Of so many further children of `node`, in order."""
    actions = config.actions
    if len(actions) == 1:
        return actions * number
    if config.order == "by_action" and config.widening.kind == "once":
        return [action for action in actions for _ in range(config.width)][-number:]
    first = node.num_coming
    return [actions[(first + i) % len(actions)] for i in range(number)]
