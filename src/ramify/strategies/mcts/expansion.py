"""Expansion: how many children a place of a Monte Carlo tree search gets at once, by which actions, and whether all
have arrived.

While some are missing, a search may ask for surplus children (`MCTSConfig.surplus`). A child that arrives after the
expansion is complete is a surplus child.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ramify.strategies.mcts.config import MCTSConfig
from ramify.strategies.mcts.node import MCTSNode


@dataclass(slots=True, eq=False)
class MCTSExpansion:
    """Children still wanted at one place, by action. Only `take` mutates it."""

    node: MCTSNode
    missing: dict[str, int]

    @property
    def is_complete(self) -> bool:
        return not any(self.missing.values())

    @property
    def next_action(self) -> str:
        """The first action with a missing child."""
        return next(action for action, number in self.missing.items() if number)

    def take(self, action: str) -> bool:
        """Count a child that arrived; returns whether it was still wanted."""
        if not self.missing[action]:
            return False
        self.missing[action] -= 1
        return True


def num_wanted(config: MCTSConfig, node: MCTSNode, *, left: int) -> int:
    """Children that an expansion of `node` asks for, when `left` samples remain."""
    if config.widening.kind == "once":
        return min(config.children_at_once - node.num_coming, left)
    return min(config.width, config.widening.most - node.num_coming, left)


def actions_of(config: MCTSConfig, node: MCTSNode, number: int) -> Sequence[str]:
    """The actions of the next `number` children of `node`, in order."""
    actions = config.actions
    if len(actions) == 1:
        return actions * number
    if config.order == "by_action" and config.widening.kind == "once":
        return [action for action in actions for _ in range(config.width)][-number:]
    first = node.num_coming
    return [actions[(first + i) % len(actions)] for i in range(number)]
