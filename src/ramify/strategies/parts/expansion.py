"""Expansion: children asked for together, at one place or on a whole level, and the judgements of each child.

Children are processed in the order asked: a child is judged as soon as it and all before it have been told. So it does
not depend on timing which of two children with equal text is judged. A failed child is left out. When the budget is
used up, nothing more is asked, and an expansion keeps what it has. Draws nothing.
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
"""Whether children are judged as they grow, or only when `score` asks for it."""
Ended = Literal["judged", "left"]
"""Whether children whose path has ended are judged too."""
Twins = Literal["judged", "left"]
"""Whether a child with the text of an earlier child is judged itself, or left to the user of the expansion."""
NOT_GROWN: Final = -1


@dataclass(slots=True, eq=False)
class Child:
    """One growth of an expansion. Only the expansions mutate it."""

    above: int
    """Number of the place it hangs at. Children of one place with equal text are twins."""
    tip: int = NOT_GROWN
    """Its last node; `NOT_GROWN` while it grows, and permanently if the growth failed."""
    has_ended: bool = False
    """Whether its path has ended."""
    key: bytes = b""
    twin: "Child | None" = None
    """The first child with the same text."""
    is_told: bool = False


@dataclass(slots=True, eq=False)
class Expansion:
    """Children in the order asked. Only the expansions mutate it."""

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
        """Whether no more commands are asked."""
        self._in_flight: InFlight[Note] = InFlight()
        self._waiting: list[tuple[Command, Note]] = []

    def __bool__(self) -> bool:
        """Whether any command is in flight or waiting to be asked."""
        return bool(self._in_flight or self._waiting)

    def grow(self, grows: Sequence[Grow], aboves: Sequence[int]) -> Expansion:
        """Ask for children, each at the place with the given number. Returns their expansion."""
        expansion = Expansion([Child(above) for above in aboves])
        for command, child in zip(grows, expansion.children, strict=True):
            self._add(command, expansion, child)
        return expansion

    def score(self, expansion: Expansion, judges: Sequence[Judge]) -> None:
        """Ask for more judgements, as part of an expansion."""
        for command in judges:
            self._add(command, expansion, None)

    def is_settled(self, expansion: Expansion) -> bool:
        """Whether the outcomes of all its commands were told."""
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
        """Mean of the finite scores of the judge, times `attempts`; None = the judge gave none."""
        values = judged_values(tree, child.tip, self.judge, oracle=self.oracle)
        return self.attempts * (sum(values) / len(values)) if values else None

    def stop(self) -> None:
        """Ask for nothing more. Outcomes in flight are still accepted."""
        self.is_stopped = True
        for _, (expansion, _) in self._waiting:
            expansion.num_in_flight -= 1
        self._waiting.clear()

    def _add(self, command: Command, expansion: Expansion, child: Child | None) -> None:
        if not self.is_stopped:
            expansion.num_in_flight += 1
            self._waiting.append((command, (expansion, child)))

    def _look(self, tree: Tree, expansion: Expansion) -> None:
        """Process the next told children in order: find twins, ask for judgements."""
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
        """The judgements that the child does not have yet."""
        first = len(judged_values(tree, child.tip, self.judge, oracle=self.oracle))
        return [Judge((child.tip,), self.judge, attempt) for attempt in range(first, self.attempts)]


def judged_values(tree: Tree, node: int, judge: str, *, oracle: Oracle) -> list[float]:
    """Finite values that `judge` gave `node`, ordered by attempt."""
    scores = [score for score in tree.scores(node) if score.judge == judge]
    if len(scores) > 1:
        scores.sort(key=lambda score: score.attempt)
    values = [allowed_value(score, node, oracle=oracle) for score in scores]
    return [value for value in values if value is not None and math.isfinite(value)]


def finite_value(tree: Tree, node: int, judge: str, *, oracle: Oracle) -> float | None:
    """The last value that `judge` gave `node`; None = it gave none, or the value is not finite."""
    value = steering_value(tree, node, judge, oracle=oracle)
    return value if value is not None and math.isfinite(value) else None
