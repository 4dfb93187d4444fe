"""Descent: how a Monte Carlo tree search goes down from the root to the place where it continues.

It stops at a node that has fewer children than its visits allow, and at a child without a value. Otherwise it goes to
the child with the highest score (`node.py`, `Counting`). If everything at the place it reaches is in flight, that place
is temporarily barred and the descent restarts from the root (`blocked`).
"""

import math
from typing import Final, assert_never

from ramify.core.command import Option
from ramify.strategies.mcts.config import MCTSConfig
from ramify.strategies.mcts.node import CLOSED, MCTSNode
from ramify.strategies.parts.ucb import reduced_first_play

NO_SCORES: Final[list[float]] = []


class Descent:
    """Chooses by the statistics of the nodes, and closes nodes below which nothing is left."""

    def __init__(self, config: MCTSConfig, root: MCTSNode) -> None:
        self.config = config
        self.root = root
        self._counting = config.choice
        self._lowest, self._highest = config.value_range or (math.inf, -math.inf)
        self._scale = 1.0 if config.value_range is None else self._highest - self._lowest
        """Width of the range of q. Bonuses are multiplied by it."""
        self._scores: list[float] = []
        """Scores of the children at the last choice."""
        self._visits_needed: list[float] = []
        """By number of children: the visits at which one more is allowed."""

    def place(self) -> MCTSNode | None:
        """Where to grow, or which child to value; None = nowhere until an outcome arrives."""
        node, has_room = self._descended()
        barred: list[MCTSNode] = []
        while not has_room and node is not self.root and self.config.blocked != "wait":
            self._counting.bar(node)
            barred.append(node)
            node, has_room = self._descended()
        for each in barred:
            self._counting.unbar(each)
        if not has_room and self.config.blocked == "widen":
            return next(filter(self._may_widen, (*barred, self.root)), None)
        return node if has_room else None

    def see(self, node: MCTSNode) -> None:
        """Update the range of q after a value was backed up from `node`."""
        for above in node.path():
            self._lowest, self._highest = min(self._lowest, above.q), max(self._highest, above.q)
        self._scale = self._highest - self._lowest or 1.0

    def why(self, node: MCTSNode) -> tuple[Option, ...]:
        """The child chosen last on the way to `node`, and the best of its siblings, for the viewer."""
        scores, parent = self._scores, node.parent
        if parent is None or len(scores) != len(parent.children):
            return ()
        chosen = Option(node.tip, scores[node.place], _terms(node))
        scores[node.place] = CLOSED
        second = max(scores)
        if not math.isfinite(second):
            return (chosen,)
        other = parent.children[scores.index(second)]
        return chosen, Option(other.tip, second, _terms(other))

    def _descended(self) -> tuple[MCTSNode, bool]:
        """Where the choice ends, and whether something can be asked for there (False = everything there is in flight).

        It ends at a child without a value, at a node that may get one more child, or where nothing else is left.
        """
        node, table = self.root, self._visits_needed
        is_once = self.config.widening.kind == "once"
        while True:
            if node.value is None and node.parent is not None:
                return node, not node.in_flight
            coming = node.num_coming
            while coming >= len(table):
                table.append(self.config.visits_needed(len(table)))
            if node.visits + node.in_flight >= table[coming] or (node.is_ended and self.config.endings == "revisit"):
                return node, True
            if node.num_live > node.num_barred:
                node = node.children[self._best(node)]
            elif node.num_pending or node.num_barred or node.is_closed:
                return node, False
            elif not is_once and coming < self.config.widening.most:
                return node, True
            else:
                self._counting.close(node)
                node = self.root

    def _may_widen(self, node: MCTSNode) -> bool:
        """Whether a node may get one child more than its visits allow."""
        widening, is_open = self.config.widening, not (node.is_ended or node.is_closed)
        is_known = node.value is not None or node.parent is None
        return is_known and is_open and widening.kind == "progressive" and node.num_coming < widening.most

    def _best(self, node: MCTSNode) -> int:
        """Index of the child with the highest score; for equal scores the first, unless `first_play.tie` says
        otherwise."""
        if len(node.children) == 1:
            self._scores = NO_SCORES
            return 0
        factor = self._counting.factor(node) * self._scale
        if node.num_unvisited:
            scores = self._scores = self._first_scores(node, factor)
            best = max(scores)
            if self.config.first_play.tie == "prior":
                same = [place for place, score in enumerate(scores) if score == best]
                return max(same, key=lambda place: node.children[place].weight)
            return scores.index(best)
        scores = self._scores = [q + factor * share for q, share in zip(node.qs, node.shares, strict=True)]
        return scores.index(max(scores))

    def _first_scores(self, node: MCTSNode, factor: float) -> list[float]:
        """Scores of the children when some of them have no value."""
        instead = self._first_q(node)
        return [
            q  # no bonus: the bonus of a child without visits may be infinite
            if q == CLOSED
            else (q if child.visits or self._has_lost(child) else instead) + (factor * share if factor else 0.0)
            for child, q, share in zip(node.children, node.qs, node.shares, strict=True)
        ]

    def _first_q(self, node: MCTSNode) -> float:
        rule = self.config.first_play
        match rule.kind:
            case "first":
                return math.inf
            case "value":
                return rule.value
            case "parent":
                visited = sum(child.weight for child in node.children if child.visits) / node.sum_weights
                return reduced_first_play(node.q, visited, reduction=rule.reduction * self._scale)
            case _:
                assert_never(rule.kind)

    def _has_lost(self, child: MCTSNode) -> bool:
        return self._counting.pending == "virtual_loss" and child.in_flight > 0


def _terms(node: MCTSNode) -> tuple[tuple[str, float], ...]:
    return ("q", node.q), ("visits", float(node.visits))
