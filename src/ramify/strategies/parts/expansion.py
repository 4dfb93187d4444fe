"""Expansion: children asked for together, of one place or of a whole level, and the judgements of each.

Children are looked at in order of request: one is judged as soon as it and all before it have been told, so that which
of two children that say the same is judged does not depend on which came first. A child that failed is left out. When
the budget is gone nothing more is asked, and an expansion has what it has. Draws nothing.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from ramify.core.command import Command, Failed, Grow, Grown, Judge, Outcome
from ramify.core.tree import Tree
from ramify.strategies.parts.flight import InFlight
from ramify.strategies.parts.steering import Oracle, allowed_value, steering_value

When = Literal["grown", "asked"]
"""Whether children are judged as they grow, or when `score` asks for it."""
Ended = Literal["judged", "left"]
"""Whether children whose path has ended are judged too."""
Twins = Literal["judged", "left"]
"""Whether a child that says what an earlier one said is judged for itself, or left to whoever uses the expansion."""
NOT_GROWN: Final = -1


@dataclass(slots=True, eq=False)
class Child:
    """One growth of an expansion. Mutated by the expansions alone."""

    above: int
    """Number of the place it hangs at; children of one place that say the same are twins."""
    tip: int = NOT_GROWN
    """Its last node; `NOT_GROWN` while it grows, and for ever where that failed."""
    has_ended: bool = False
    """Whether its path has."""
    key: bytes = b""
    twin: "Child | None" = None
    """The first one that says the same."""
    is_told: bool = False


@dataclass(slots=True, eq=False)
class Expansion:
    """Children in order of request. Mutated by the expansions alone."""

    children: list[Child]
    num_looked_at: int = 0
    num_in_flight: int = 0
    first_of: dict[tuple[int, bytes], Child] = field(default_factory=dict[tuple[int, bytes], Child])

    @property
    def grown(self) -> list[Child]:
        """The children that did not fail."""
        return [child for child in self.children if child.tip != NOT_GROWN]


Note = tuple[Expansion, Child | None]


class Expansions:
    """All expansions of one search and their commands in flight."""

    def __init__(
        self,
        judge: str,
        *,
        oracle: Oracle,
        attempts: int = 1,
        when: When = "grown",
        ended: Ended = "judged",
        twins: Twins = "left",
    ) -> None:
        """`judge` scores each child `attempts` times."""
        self.judge = judge
        self.oracle: Oracle = oracle
        self.attempts = attempts
        self.when: When = when
        self.ended: Ended = ended
        self.twins: Twins = twins
        self.is_stopped = False
        """Whether nothing more is asked."""
        self._in_flight: InFlight[Note] = InFlight()
        self._waiting: list[tuple[Command, Note]] = []

    def __bool__(self) -> bool:
        """Whether anything is in flight or to be asked."""
        return bool(self._in_flight or self._waiting)

    def grow(self, grows: Sequence[Grow], aboves: Sequence[int]) -> Expansion:
        """Ask for children next, each at the place of that number; returns what they will be."""
        expansion = Expansion([Child(above) for above in aboves])
        for command, child in zip(grows, expansion.children, strict=True):
            self._add(command, expansion, child)
        return expansion

    def score(self, expansion: Expansion, judges: Sequence[Judge]) -> None:
        """Ask for more judgements, as part of an expansion."""
        for command in judges:
            self._add(command, expansion, None)

    def is_settled(self, expansion: Expansion) -> bool:
        """Whether all of its commands are told."""
        return not expansion.num_in_flight

    def ask(self) -> Sequence[Command]:
        waiting, self._waiting = self._waiting, []
        return self._in_flight.book([command for command, _ in waiting], [note for _, note in waiting])

    def tell(self, tree: Tree, outcome: Outcome) -> None:
        expansion, child = self._in_flight.take(outcome)
        expansion.num_in_flight -= 1
        if isinstance(outcome, Failed) and outcome.reason == "budget":
            self.stop()
        if child is None:
            return
        child.is_told = True
        if isinstance(outcome, Grown):
            child.tip, child.has_ended = outcome.tip, tree.is_ended(outcome.tip)
            child.key = tree.content_key(*outcome.nodes)
        self._look(tree, expansion)

    def value(self, tree: Tree, child: Child) -> float | None:
        """Mean of the finite scores the judge gave it, times the attempts; None = it gave none."""
        values = judged_values(tree, child.tip, self.judge, oracle=self.oracle)
        return self.attempts * (sum(values) / len(values)) if values else None

    def stop(self) -> None:
        """Ask for nothing more; what is in flight comes in."""
        self.is_stopped = True
        for _, (expansion, _) in self._waiting:
            expansion.num_in_flight -= 1
        self._waiting.clear()

    def _add(self, command: Command, expansion: Expansion, child: Child | None) -> None:
        if not self.is_stopped:
            expansion.num_in_flight += 1
            self._waiting.append((command, (expansion, child)))

    def _look(self, tree: Tree, expansion: Expansion) -> None:
        """Look at the children whose turn it is: find twins, ask for judgements."""
        while expansion.num_looked_at < len(expansion.children):
            child = expansion.children[expansion.num_looked_at]
            if not child.is_told:
                return
            expansion.num_looked_at += 1
            if child.tip == NOT_GROWN:
                continue
            first = expansion.first_of.setdefault((child.above, child.key), child)
            child.twin, child.key = None if first is child else first, b""
            if self._is_judged(child):
                self.score(expansion, self._judgements(tree, child))

    def _is_judged(self, child: Child) -> bool:
        is_due = self.when == "grown" and (self.ended == "judged" or not child.has_ended)
        return is_due and (child.twin is None or self.twins == "judged")

    def _judgements(self, tree: Tree, child: Child) -> list[Judge]:
        """Those it has not been given yet."""
        first = len(judged_values(tree, child.tip, self.judge, oracle=self.oracle))
        return [Judge((child.tip,), self.judge, attempt) for attempt in range(first, self.attempts)]


def judged_values(tree: Tree, node: int, judge: str, *, oracle: Oracle) -> list[float]:
    """Finite values that `judge` gave `node`, by attempt."""
    scores = [score for score in tree.scores(node) if score.judge == judge]
    if len(scores) > 1:
        scores.sort(key=lambda score: score.attempt)
    values = [allowed_value(score, node, oracle=oracle) for score in scores]
    return [value for value in values if value is not None and math.isfinite(value)]


def finite_value(tree: Tree, node: int, judge: str, *, oracle: Oracle) -> float | None:
    """The last value that `judge` gave `node`; None = it gave none that is finite."""
    value = steering_value(tree, node, judge, oracle=oracle)
    return value if value is not None and math.isfinite(value) else None
