"""Depths: Tree of Thoughts depth first, with backtracking and optional growth ahead of need.

States wait on a stack, with the best state of the last expansion on top. A state is visited when it reaches the top;
this counts as a step. It grows if it has not ended and its value is above the threshold; only its best few next steps
are put on the stack. States below the top may grow ahead of their turn. This changes the cost but not the order of
visits. Ties go to the one asked for first.
"""

from dataclasses import dataclass

from ramify.core.command import SHOWN, Candidate, Fork, Grow, Option, siblings
from ramify.core.errors import ConfigError
from ramify.core.tree import ROOT, Tree
from ramify.strategies.parts.expansion import Expansion, Expansions
from ramify.strategies.tot.weigh import LevelGrowth, weighed


@dataclass(frozen=True, slots=True)
class DepthRules:
    """Limits of the search. Defaults are those of the crosswords."""

    max_tried: int = 3
    """Next steps tried from each state, best first."""
    max_steps: int = 100
    """Maximum number of visited states."""
    threshold: float | None = None
    """A state with this value or less does not grow; None = every state grows."""
    max_answers: int | None = None
    """Number of answers that ends the search; None = it continues to its last step."""
    ahead: int = 0
    """States below the top of the stack that grow before their turn."""

    def __post_init__(self) -> None:
        max_answers = 1 if self.max_answers is None else self.max_answers
        if min(self.max_tried, self.max_steps, max_answers) < 1 or self.ahead < 0:
            raise ConfigError(f"tot: dfs counts must be at least 1 and ahead at least 0, got {self!r}")


@dataclass(slots=True, eq=False)
class _State:
    """A path on the stack."""

    tip: int
    value: float
    depth: int
    has_ended: bool
    is_open: bool
    """Whether it may grow."""
    is_visited: bool = False
    expansion: Expansion | None = None


class Depths:
    """Follows one path at a time; may grow some states ahead."""

    def __init__(self, rules: DepthRules, growing: LevelGrowth, expansions: Expansions) -> None:
        self.rules = rules
        self.growing = growing
        self.is_over = False
        self.round = 0
        """States visited."""
        self.answers: list[Candidate] = []
        self._expansions = expansions
        self._stack = [_State(ROOT, 0.0, 0, has_ended=False, is_open=True, is_visited=True)]
        self._num_ahead = 0
        """Total number of states grown before their turn."""

    def advance(self, tree: Tree) -> None:
        """Visit states until one has to wait for outcomes."""
        while self._stack and not self.is_over:
            state = self._stack[-1]
            if not state.is_visited:
                self._visit(state)
            elif not state.is_open:
                self._stack.pop()
            elif not self._is_grown(state):
                return
            else:
                self._stack.pop()
                self._stack += self._steps(tree, state)
        if not self.is_over:
            self._end()

    def _visit(self, state: _State) -> None:
        state.is_visited = True
        self.round += 1
        if state.has_ended:
            self.answers.append(Candidate(state.tip, state.value))
        if self.round >= self.rules.max_steps or len(self.answers) == self.rules.max_answers:
            self._end()

    def _end(self) -> None:
        self.is_over = True
        self._expansions.stop()

    def _is_grown(self, state: _State) -> bool:
        """Whether all growths from the top state are told. Starts them, and the growths ahead."""
        self._grow(state)
        num_ahead = 0
        for other in reversed(self._stack[:-1]):
            if num_ahead >= self.rules.ahead or self._num_ahead >= self.rules.max_steps:
                break
            if other.is_open:
                num_ahead += 1
                self._num_ahead += other.expansion is None
                self._grow(other)
        return state.expansion is not None and self._expansions.is_settled(state.expansion)

    def _grow(self, state: _State) -> None:
        if state.expansion is not None:
            return
        growing = self.growing
        until = "end" if state.depth + 1 == growing.num_levels else "step"
        fork = Fork(growing.width, "depth", score=None if state.tip == ROOT else state.value)
        why = tuple(Option(s.tip, s.value) for s in reversed(self._stack[-SHOWN:]) if s.tip != ROOT)
        grows = siblings(Grow(state.tip, until=until, action=growing.action, fork=fork, why=why))
        state.expansion = self._expansions.grow(grows, [0] * growing.width)

    def _steps(self, tree: Tree, state: _State) -> list[_State]:
        """The best next steps of a state, the best last."""
        assert state.expansion is not None
        found = weighed(tree, state.expansion, self._expansions, self.growing.duplicate_value)
        found.sort(key=lambda pair: -pair[1])
        states: list[_State] = []
        for child, value in found[: self.rules.max_tried]:
            is_worth = self.rules.threshold is None or value > self.rules.threshold
            is_open = is_worth and not child.has_ended and state.depth + 1 < self.growing.num_levels
            states.append(_State(child.tip, value, state.depth + 1, child.has_ended, is_open))
        return states[::-1]
