"""Node: the statistics of one segment in a Monte Carlo tree search, and of the choice among the segments below it.

The score of a child is q + factor x share. The child has its own q and share; the factor depends on the parent and is
the same for all siblings. So a choice is one pass over two lists, and a change of one child changes one entry.

    rule    factor                              share
    puct    c sqrt(sum of siblings' counts)     prior / (1 + count)
    muzero  the same with MuZero's growing c    prior / (1 + count)
    uct     c sqrt(ln(parent's count))          prior / sqrt(count)

`pending` decides what a count is: visits only, or visits and requests in flight. Siblings arrive over time, so a prior
is stored as an unnormalised weight, and the sum of weights is part of the factor.

Sources: AlphaZero (arXiv 1712.01815), MuZero (1911.08265), WU-UCT (1810.11755), treequest standard_mcts.py.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Literal

from ramify.strategies.parts.ucb import growing_exploration, with_virtual_loss

Rule = Literal["puct", "muzero", "uct"]
Pending = Literal["counted", "virtual_loss", "ignored"]
"""How a choice counts a request in flight: as a visit that does not change q (WU-UCT), as visits that lost, or not at
all."""
Backup = Literal["mean", "max", "softmax"]
CLOSED: Final = -math.inf
"""q of a child that is never chosen."""
EMPTY: Final[list[float]] = []
NOBODY: Final[list["MCTSNode"]] = []
"""Shared lists for a node without children; never changed."""


class MCTSNode:
    """One segment of a search, with the statistics backed up through it. Only the search mutates it.

    Most nodes never have a child, so the lists about children are shared empty lists until the first child replaces
    them.
    """

    __slots__ = (
        "by_length", "children", "count", "depth", "has_answer", "in_flight", "is_closed", "is_ended", "num_barred",
        "num_coming", "num_live", "num_pending", "num_unvisited", "parent", "place", "prior", "q", "qs", "said",
        "shares", "sum_counts", "sum_weights", "tip", "top_evidence", "value", "value_sum", "visits", "weight",
    )  # fmt: skip

    def __init__(self, tip: int, parent: "MCTSNode | None" = None, *, is_ended: bool = False) -> None:
        self.tip = tip
        """Node of the tree where it ends."""
        self.parent = parent
        self.depth: int = 0 if parent is None else parent.depth + 1
        self.place = -1
        """Its index among its siblings; -1 = it is not among them yet."""
        self.visits = 0
        self.in_flight = 0
        self.value_sum = 0.0
        self.q = 0.0
        """The visits' values combined: their mean, their maximum, or their soft maximum."""
        self.value: float | None = None
        """Its own value, before anything below it was backed up; None = it has none yet."""
        self.prior = 1.0
        """Not normalised; includes the priors of twins with the same text."""
        self.weight = 1.0
        """The prior, plus noise if there is any."""
        self.said: bytes | None = None
        """The text the model wrote in it; None = not needed so far."""
        self.is_ended = is_ended
        """Whether its path has ended."""
        self.is_closed = False
        """Whether it is never chosen again."""
        self.has_answer = False
        """Whether a whole answer ends here or below."""
        self.num_pending = 0
        """Children in flight."""
        self.num_coming = 0
        """Children that arrived, twins included, and children in flight."""
        self.num_live = 0
        """Children that may be chosen."""
        self.num_barred = 0
        """Children among these that are temporarily barred."""
        self.num_unvisited = 0
        """Children without a value."""
        self.count: float = 0
        """Visits as the choice counts them."""
        self.sum_counts: float = 0
        """Sum of the children's counts."""
        self.sum_weights = 1.0
        """Divisor of the children's weights."""
        self.top_evidence = -math.inf
        """Best evidence of the children; their priors are relative to it."""
        self.children: list[MCTSNode] = NOBODY
        self.qs: list[float] = EMPTY
        self.shares: list[float] = EMPTY
        self.by_length: dict[int, list[MCTSNode]] | None = None
        """Children by the length of their branch; only those of equal length can have the same text."""

    def adopt(self, child: "MCTSNode", q: float, share: float) -> None:
        """Append `child` to the children."""
        child.place = len(self.children)
        if child.place:
            self.children.append(child)
            self.qs.append(q)
            self.shares.append(share)
        else:
            self.children, self.qs, self.shares = [child], [q], [share]

    def path(self) -> Iterator["MCTSNode"]:
        """From this node up to the root."""
        node: MCTSNode | None = self
        while node is not None:
            yield node
            node = node.parent

    def below(self) -> Iterator["MCTSNode"]:
        """All nodes below this one, breadth first."""
        nodes = list(self.children)
        for node in nodes:
            yield node
            nodes += node.children

    def most_visited(self, allowed: Callable[["MCTSNode"], bool]) -> "MCTSNode":
        """Go down to the most visited allowed child each time, ties by q; returns the node where this ends."""
        node = self
        while children := [child for child in node.children if allowed(child)]:
            node = max(children, key=lambda child: (child.visits, child.q))
        return node

    def mark_answer(self) -> None:
        """Record a whole answer at its end, for it and all nodes above."""
        for above in self.path():
            if above.has_answer:
                return
            above.has_answer = True


@dataclass(frozen=True, slots=True)
class Counting:
    """How visits, values and requests in flight give the numbers that a choice uses."""

    rule: Rule = "puct"
    """The bound: PUCT with a constant factor (AlphaZero), PUCT with MuZero's growing factor, or UCT."""
    exploration: float = 1.25
    """Weight of the exploration bonus (c in the table of rules); MuZero's 1.25."""
    pending: Pending = "counted"
    loss: float = 1.0
    """Subtracted from the sum of values for each request in flight (`virtual_loss`)."""
    loss_visits: int = 1
    """Visits counted for each request in flight (`virtual_loss`)."""
    backup: Backup = "mean"
    """What a node makes of the values of its visits: their mean, their maximum, or their soft maximum."""
    softness: float = 0.1
    """Temperature of `softmax`: a high one gives the mean, one near 0 the maximum."""

    def add(self, parent: MCTSNode, child: MCTSNode) -> None:
        """Add `child` below `parent`; its weight must be set already."""
        parent.adopt(child, CLOSED if child.is_closed else child.q, self.share(child))
        parent.sum_counts += child.count
        parent.num_live += not child.is_closed
        parent.num_unvisited += not child.visits

    def close(self, node: MCTSNode) -> None:
        """Never choose `node` again."""
        if node.is_closed:
            return
        node.is_closed = True
        if node.parent is not None and node.place >= 0:
            node.parent.num_live -= 1
            node.parent.qs[node.place] = CLOSED

    def bar(self, node: MCTSNode) -> None:
        """Do not choose `node` until `unbar`."""
        if node.parent is not None:
            node.parent.num_barred += 1
            node.parent.qs[node.place] = CLOSED

    def unbar(self, node: MCTSNode) -> None:
        if node.parent is not None:
            node.parent.num_barred -= 1
            self._refresh(node)

    def reweigh(self, parent: MCTSNode) -> None:
        """Recompute the shares after the weights of all children changed."""
        parent.shares = [self.share(child) for child in parent.children]

    def reserve(self, node: MCTSNode) -> None:
        """Count a request in flight below `node`."""
        above: MCTSNode | None = node
        while above is not None:
            above.in_flight += 1
            if self.pending != "ignored":
                self._refresh(above)
            above = above.parent

    def release(self, node: MCTSNode) -> None:
        """Stop counting a request in flight below `node` that gave nothing."""
        above: MCTSNode | None = node
        while above is not None:
            above.in_flight -= 1
            if self.pending != "ignored":
                self._refresh(above)
            above = above.parent

    def visit(self, node: MCTSNode, value: float) -> None:
        """Back `value` up from `node` to the root."""
        above: MCTSNode | None = node
        while above is not None:
            self._take(above, value)
            self._refresh(above)
            above = above.parent

    def arrive(self, node: MCTSNode, value: float) -> None:
        """Back `value` up from `node` to the root, and stop counting its request in flight."""
        above: MCTSNode | None = node
        while above is not None:
            above.in_flight -= 1
            self._take(above, value)
            parent = above.parent
            if self.pending != "counted":
                self._refresh(above)
            elif parent is not None and not above.is_closed:
                # The request in flight becomes a visit: the count, and so the share, stay the same.
                parent.qs[above.place] = above.q
            above = parent

    def factor(self, parent: MCTSNode) -> float:
        """The factor for the shares of the children of `parent`."""
        if self.rule == "uct":
            count = parent.visits + (parent.in_flight if self.pending == "counted" else 0)
            return self.exploration * math.sqrt(math.log(count)) / parent.sum_weights if count > 1 else 0.0
        total = parent.sum_counts
        c = self.exploration if self.rule == "puct" else growing_exploration(self.exploration, total)
        return c * math.sqrt(total) / parent.sum_weights

    def share(self, node: MCTSNode) -> float:
        """The share of `node`; also updates the node's count."""
        count = node.visits
        if self.pending == "counted":
            count += node.in_flight
        elif self.pending == "virtual_loss":
            count += self.loss_visits * node.in_flight
        node.count = count
        if self.rule == "uct":
            return node.weight / math.sqrt(count) if count else math.inf
        return node.weight / (1 + count)

    def _refresh(self, node: MCTSNode) -> None:
        """Update what the parent stores about `node`."""
        parent = node.parent
        if parent is None or node.place < 0:
            return
        before = node.count
        parent.shares[node.place] = self.share(node)
        parent.sum_counts += node.count - before
        if not node.is_closed:
            parent.qs[node.place] = node.q if self.pending != "virtual_loss" else self._lost_q(node)

    def _lost_q(self, node: MCTSNode) -> float:
        if not node.in_flight:
            return node.q
        total, count = with_virtual_loss(
            node.q * node.visits, node.visits, node.in_flight, loss=self.loss, weight=self.loss_visits
        )
        return total / count

    def _take(self, node: MCTSNode, value: float) -> None:
        """Record one more visit of `node` alone."""
        node.visits += 1
        node.value_sum += value
        if self.backup == "mean":
            node.q = node.value_sum / node.visits
        elif self.backup == "max":
            node.q = value if node.visits == 1 else max(node.q, value)
        else:
            node.q = soft_maximum(node.q, node.visits - 1, value, softness=self.softness)
        if node.visits == 1 and node.parent is not None and node.place >= 0:
            node.parent.num_unvisited -= 1


def soft_maximum(q: float, visits: int, value: float, *, softness: float) -> float:
    """softness ln(mean of exp(value / softness)), over the `visits` values combined in `q` and one more."""
    if not visits:
        return value
    top = max(q, value)
    total = visits * math.exp((q - top) / softness) + math.exp((value - top) / softness)
    return top + softness * math.log(total / (visits + 1))
