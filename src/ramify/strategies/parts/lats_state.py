"""State: what LATS knows of each step it has grown, its bound and its backup.

Source: lapisrocks/LanguageAgentTreeSearch hotpot/lats.py.
"""

import math
from dataclasses import dataclass
from typing import Final, Literal

from ramify.strategies.parts.ucb import uct

MeanOf = Literal["visits", "visits_again"]
"""In the bound a value is what it is, a mean over visits, or is divided by them again (published)."""
Unvisited = Literal["first", "value"]
"""A state nobody visited goes first, the one of highest value; or its value is its bound (published)."""
EXPLORATION: Final = math.sqrt(2)


@dataclass(slots=True, eq=False)
class LATSState:
    """A step and where it led. Mutated by the search alone."""

    tip: int
    """Node of the tree it ends at."""
    above: "LATSState | None" = None
    depth: int = 0
    has_ended: bool = False
    reward: float | None = None
    """Of a path that ended."""
    value: float = 0.0
    """The judge's while nobody visited it, then the mean of what its visits brought."""
    visits: int = 0
    children: "list[LATSState] | None" = None
    """None = it was not expanded."""
    is_closed: bool = False
    """Whether nothing below it is left to expand."""

    def open_children(self) -> "list[LATSState]":
        """Those that may be selected, in order of request."""
        return [child for child in self.children or () if not child.is_closed]

    def close(self) -> None:
        """It is exhausted; so is what is above it where nothing else is open there."""
        state: LATSState | None = self
        while state is not None and not state.open_children():
            state.is_closed = True
            state = state.above


def bound(
    value: float,
    visits: int,
    parent_visits: int,
    *,
    mean_of: MeanOf = "visits",
    unvisited: Unvisited = "first",
    exploration: float = EXPLORATION,
) -> float:
    """value + exploration sqrt(ln(parent's visits) / visits); infinity means: choose it first."""
    q = value / visits if visits and mean_of == "visits_again" else value
    first = math.inf if unvisited == "first" else 0.0
    return uct(q, visits, parent_visits, exploration=exploration, unvisited=first)


def back_up(last: LATSState, brought: float, *, failed_end: float | None = -1.0) -> None:
    """From `last` up to the root, take what a visit brought into the means.

    An end whose reward is 0 takes `failed_end` for itself; None = what the others take.
    """
    state: LATSState | None = last
    while state is not None:
        is_failed = state.has_ended and state.reward == 0 and failed_end is not None
        taken = failed_end if is_failed and failed_end is not None else brought
        state.visits += 1
        state.value += (taken - state.value) / state.visits
        state = state.above
