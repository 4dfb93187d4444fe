"""State: what RAP knows of each step it has grown, and the bound it selects by.

Source: maitrix-org/llm-reasoners reasoners/algorithm/mcts.py.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

Aggregate = Literal["sum", "mean"]
CalcQ = Literal["mean", "max"]


@dataclass(slots=True, eq=False)
class RAPState:
    """A step and where it led. Mutated by the search alone."""

    tip: int
    """Node of the tree it ends at."""
    above: "RAPState | None" = None
    depth: int = 0
    has_ended: bool = False
    fast_reward: float = 0.0
    reward: float | None = None
    """None = nobody visited it."""
    children: "list[RAPState] | None" = None
    """None = nobody went on from it."""
    is_closed: bool = False
    """Whether it is not selected again."""
    visits: int = 0
    total: float = 0.0
    """Sum of what its iterations brought."""
    best: float = -math.inf

    @property
    def counted_reward(self) -> float:
        """Its reward, or the fast one in its place."""
        return self.fast_reward if self.reward is None else self.reward

    @property
    def is_answer(self) -> bool:
        """Whether its path ended and was visited."""
        return self.has_ended and self.reward is not None

    def q(self, calc_q: CalcQ) -> float:
        """What its iterations brought, or its fast reward while nobody visited it."""
        if self.reward is None or not self.visits:
            return self.fast_reward
        return self.best if calc_q == "max" else self.total / self.visits

    def add(self, brought: float) -> None:
        """Learn what one iteration brought."""
        self.visits += 1
        self.total += brought
        self.best = max(self.best, brought)

    def drop(self) -> None:
        """Leave it out of the steps of the state above."""
        if self.above is not None and self.above.children is not None:
            self.above.children.remove(self)

    def path(self) -> "list[RAPState]":
        """Steps from the first to this one; the root is none."""
        steps: list[RAPState] = []
        state = self
        while state.above is not None:
            steps.append(state)
            state = state.above
        return steps[::-1]

    def followed(self) -> "RAPState":
        """Where one comes to by the visited step of highest reward, again and again."""
        state = self
        while visited := [child for child in state.children or () if child.reward is not None]:
            state = max(visited, key=lambda child: child.counted_reward)
        return state


def all_states(root: RAPState) -> Iterator[RAPState]:
    """Every state below `root`, depth first, siblings in order of request."""
    stack = list(reversed(root.children or ()))
    while stack:
        state = stack.pop()
        yield state
        stack += reversed(state.children or ())


def bound(q: float, visits: int, log_parent_visits: float, *, exploration: float) -> float:
    """q + exploration sqrt(ln(parent's visits) / visits); of no visit, as if there were one."""
    return q + exploration * math.sqrt(log_parent_visits / (visits or 1))


def log_visits(visits: int) -> float:
    """ln of a state's visits; of none, as if there were one."""
    return math.log(visits or 1)
