"""Visited: what a tree search over steps knows of each step it has grown.

LATS, RAP and rStar share it. How a method scores children and what it backs up is in the method's own file.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Self


@dataclass(slots=True, eq=False, repr=False)
class Visited:
    """A step and where it led. Mutated by the search alone."""

    tip: int
    """Node of the tree it ends at."""
    parent: Self | None = None
    depth: int = 0
    has_ended: bool = False
    reward: float | None = None
    """What its judge gave it; None = nothing so far. In LATS only a path that ended has one."""
    value: float = 0.0
    """Its estimate before the first visit. LATS then makes it the mean of what its visits brought."""
    visits: int = 0
    value_sum: float = 0.0
    """Sum of what its visits brought."""
    best: float = -math.inf
    """The highest that a visit brought."""
    children: list[Self] = field(default_factory=list[Any])
    """In order of request."""
    is_expanded: bool = False
    """Whether its children were asked for."""
    is_closed: bool = False
    """Whether it is never selected again."""

    @property
    def q(self) -> float:
        """Mean of what its visits brought, or its value before the first."""
        return self.value_sum / self.visits if self.visits else self.value

    def visit(self, brought: float) -> None:
        """Count one visit and what it brought."""
        self.visits += 1
        self.value_sum += brought
        self.best = max(self.best, brought)

    def path(self) -> list[Self]:
        """From the root to here."""
        steps = [self]
        while (parent := steps[-1].parent) is not None:
            steps.append(parent)
        return steps[::-1]

    def below(self) -> Iterator[Self]:
        """Depth first, siblings in order of request; itself left out."""
        stack = self.children[::-1]
        while stack:
            yield (step := stack.pop())
            stack += step.children[::-1]

    def open_children(self) -> list[Self]:
        """Those that may be selected."""
        return [child for child in self.children if not child.is_closed]

    def close_if_exhausted(self) -> None:
        """Close it if no child is open, and then each step above of which the same is true."""
        for step in reversed(self.path()):
            if step.open_children():
                return
            step.is_closed = True
