"""LATS: a tree search over steps of an agent, steered by a judge of unfinished paths.

An iteration goes down by upper confidence bounds to a state that was not expanded, grows `width` steps there, drops
those that say what another said, has each valued, and rolls the best out: again `width` steps, of which the best by
value goes on, until a path ends or the rollout is deep enough. What the rollout brought is backed up into the means of
all states on its way. States below which nothing is left to expand are closed; when the root is, the search is over.

A path that ended has a reward: the judge's value of it, or, where `ends` says so, the reward of the task, which must be
declared an oracle if its judge sees the answer. The published search stops and reflects by the task's own ground truth;
its reflections are texts, and no part of this. A step that failed or has no value is dropped. One iteration at a time;
other trees fill the engine meanwhile. Ties go to the step asked for first. Draws nothing.

Source: arXiv 2310.04406; lapisrocks/LanguageAgentTreeSearch hotpot/lats.py, whose `select_node` may loop for ever, or
expand again what it exhausted; here each iteration expands once.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from ramify.core.command import SHOWN, Candidate, Command, Fork, Grow, Option, Outcome, siblings
from ramify.core.errors import ConfigError
from ramify.core.strategy import Phase, Vote
from ramify.core.tree import ROOT, Tree
from ramify.strategies.parts.draws import Draws
from ramify.strategies.parts.expansion import Expansion, Expansions, finite_value
from ramify.strategies.parts.steering import REWARD, Oracle
from ramify.strategies.parts.ucb import uct
from ramify.strategies.parts.visited import Visited

MeanOf = Literal["visits", "visits_again"]
"""In the bound a value is what it is, a mean over visits, or is divided by them again (published)."""
Unvisited = Literal["first", "value"]
"""A step nobody visited goes first, the one of highest value; or its value is its bound (published)."""
EXPLORATION: Final = math.sqrt(2)


@dataclass(frozen=True, slots=True, kw_only=True)
class LATSPublished:
    """Switches that only reproduce the published code; the defaults are the corrected behaviour."""

    mean_of: MeanOf = "visits"
    unvisited: Unvisited = "first"
    join: Literal["node", "position"] = "node"
    """A value is that of the step judged; or values of steps that have not ended go to all steps by their position, the
    last ones having 0 (published)."""
    rollout_from: Literal["child", "root"] = "child"
    """Where `rollout_depth` is counted from; published is the root, so that deeper states are not rolled out."""
    rollout_choice: Literal["best", "ended"] = "best"
    """The step that goes on: the best by value, or the first that has ended if one has (published)."""
    rollout_states: Literal["attached", "loose"] = "attached"
    """Whether states of rollouts are part of the tree that is searched, or are forgotten (published)."""
    rollout_value: Literal["mean", "mean_with_zero"] = "mean"
    """What a rollout without an end brings: the mean of the values from the first state on, or of 0 and the values
    behind the first (published)."""
    cut_value: float | None = None
    """What a rollout brings that came to its full depth without an end; None = as if it stopped by itself. Published
    is -1, so that its values are lost."""
    last_step: Literal["end", "step"] = "end"
    """Whether a path at the depth limit grows to its end, or stays without one (published)."""


@dataclass(frozen=True, slots=True)
class LATSConfig:
    """Defaults are the corrected ones; numbers are those of the code."""

    width: int = 5
    """Steps grown of a state."""
    iterations: int = 30
    """Iterations of the search: each selects, expands and rolls out once."""
    depth_limit: int = 7
    """Maximum number of steps of a path in the tree; a state this deep is not expanded."""
    rollout_depth: int = 4
    """Maximum number of steps of one rollout; 0 = no rollouts."""
    exploration: float = EXPLORATION
    """Weight of the exploration bonus in the UCT score; sqrt 2 by default."""
    failed_end: float | None = -1.0
    """What an end of reward 0 takes itself, while what is above it takes what the rollout brought; None = the same."""
    ends: Literal["judge", "reward"] = "judge"
    """Whose value a path that ended has: the judge's, or the task's reward (published)."""
    success: float | None = None
    """Reward of an end that ends the search; None = none does. Published is 1."""
    judge: str = "process"
    """Name of the run's judge that values unfinished paths. `reward` is not allowed."""
    oracle: Oracle = "refused"
    published: LATSPublished = LATSPublished()
    """Switches that reproduce the published code."""

    def __post_init__(self) -> None:
        if min(self.width, self.iterations, self.depth_limit) < 1 or self.rollout_depth < 0:
            raise ConfigError(f"lats: width, iterations and depth_limit must be at least 1, got {self!r}")
        if not 0 <= self.exploration < math.inf:
            raise ConfigError(f"lats: exploration = {self.exploration!r} must be finite and at least 0")
        if not all(math.isfinite(number or 0.0) for number in (self.published.cut_value, self.failed_end)):
            raise ConfigError(f"lats: cut_value and failed_end are finite numbers or None, got {self!r}")
        if self.judge == REWARD:
            raise ConfigError("lats: judge = 'reward' values ended paths only; name a judge of unfinished ones")

    @property
    def planned_leaves(self) -> int:
        return self.iterations * self.width * (1 + self.rollout_depth)


AS_PUBLISHED: Final = LATSConfig(
    ends="reward",
    success=1.0,
    oracle="declared",
    published=LATSPublished(
        mean_of="visits_again",
        unvisited="value",
        join="position",
        rollout_from="root",
        rollout_choice="ended",
        rollout_states="loose",
        rollout_value="mean_with_zero",
        cut_value=-1.0,
        last_step="step",
    ),
)


class LATS:
    """Select, expand, value, roll out, back up."""

    Config = LATSConfig
    measures: frozenset[str] = frozenset()
    is_order_free = True
    post_hoc_reason = "which steps grow on depends on the values of others"
    vote: Vote = "best"

    def __init__(self, config: LATSConfig, rng: Draws) -> None:
        self.config = config
        self.root = Visited(ROOT)
        self._expansions = Expansions(
            config.judge, oracle=config.oracle, ended="judged" if config.ends == "judge" else "left"
        )
        self._current = self.root
        """What is expanded next, or is being expanded."""
        self._expansion: Expansion | None = None
        self._values: list[float] | None = None
        """Of the rollout in progress, its first state's included; None = there is none."""
        self._num_rolled = 0
        """Depth of the rollout, counted from where it is limited."""
        self._answers: list[Candidate] = []
        self._round = 0
        self._is_over = False

    def ask(self, tree: Tree) -> Sequence[Command]:
        if not self._is_over and self._expansion is None:
            self._expand()
        elif self._expansion is not None and self._expansions.is_settled(self._expansion):
            self._learn(tree, self._expansion)
        return self._expansions.ask()

    def tell(self, tree: Tree, outcome: Outcome) -> None:
        self._expansions.tell(tree, outcome)

    def is_done(self, tree: Tree) -> bool:
        return self._is_over and not self._expansions

    def phase(self, tree: Tree) -> Phase:
        num_rounds = self.config.iterations
        if self.is_done(tree):
            return Phase("collection", self._round, num_rounds)
        return Phase("expansion" if self.root.is_expanded else "build", self._round, num_rounds)

    def candidates(self, tree: Tree) -> Sequence[Candidate]:
        """Paths that ended, in order of request, by their reward."""
        return self._answers

    # -- growing ------------------------------------------------------------------------------------------------------

    def _expand(self) -> None:
        """Grow the current state."""
        state, config = self._current, self.config
        state.is_expanded = True
        rule = "lats" if self._values is None else "rollout"
        until = "end" if config.published.last_step == "end" and state.depth + 1 == config.depth_limit else "step"
        fork = Fork(config.width, rule, score=state.value)
        grows = siblings(Grow(state.tip, until=until, fork=fork, why=self._why(state)))
        self._expansion = self._expansions.grow(grows, [0] * config.width)

    def _learn(self, tree: Tree, expansion: Expansion) -> None:
        """Take in the steps of the current state, and go on with the rollout or with the next iteration."""
        if self._is_over:
            return
        steps = self._steps(tree, expansion)
        ends = [step for step in steps if step.reward is not None]
        self._answers += [Candidate(step.tip, step.reward) for step in ends if step.reward is not None]
        if self._values is None or self.config.published.rollout_states == "attached":
            self._current.children = steps
            self._current.close_if_exhausted()
        success = self.config.success
        if success is not None and any(step.reward is not None and step.reward >= success for step in ends):
            self._is_over = True
        else:
            self._roll_out(steps)

    def _steps(self, tree: Tree, expansion: Expansion) -> list[Visited]:
        """The different steps that have a value; those that cannot be expanded are closed."""
        depth, found = self._current.depth + 1, list[Visited]()
        for child in expansion.grown:
            is_rewarded = child.has_ended and self.config.ends == "reward"
            judge = REWARD if is_rewarded else self.config.judge
            value = finite_value(tree, child.tip, judge, oracle=self.config.oracle) if child.twin is None else None
            if value is not None:
                reward = value if child.has_ended else None
                step = Visited(child.tip, self._current, depth, child.has_ended, reward, value)
                step.is_closed = step.has_ended or depth >= self.config.depth_limit
                found.append(step)
        if self.config.published.join == "position":
            values = [step.value for step in found if not step.has_ended]
            for i, step in enumerate(found):
                step.value = values[i] if i < len(values) else 0.0
        return found

    # -- rolling out --------------------------------------------------------------------------------------------------

    def _roll_out(self, steps: list[Visited]) -> None:
        """Go on with the best of these steps, or end the iteration."""
        if not steps:
            self._end_iteration(self._current)
            return
        step = self._chosen(steps)
        if self._values is None:
            self._values, self._num_rolled = [], step.depth if self.config.published.rollout_from == "root" else 0
        else:
            self._num_rolled += 1
        self._values.append(step.value)
        self._current = step
        if step.is_closed or self._num_rolled >= self.config.rollout_depth:
            self._end_iteration(step)
        else:
            self._go_on()

    def _chosen(self, steps: list[Visited]) -> Visited:
        ended = [step for step in steps if step.has_ended]
        if self._values is not None and self.config.published.rollout_choice == "ended" and ended:
            return ended[0]
        return max(steps, key=lambda step: step.value)

    def _end_iteration(self, last: Visited) -> None:
        """Back up what the rollout brought, if there was one, and begin the next iteration."""
        if self._values is not None:
            back_up(last, self._brought(last, self._values), failed_end=self.config.failed_end)
        self._values = None
        self._round += 1
        if self._round >= self.config.iterations or self.root.is_closed:
            self._is_over = True
        else:
            self._current = self._selected()
            self._go_on()

    def _brought(self, last: Visited, values: Sequence[float]) -> float:
        config = self.config
        if last.reward is not None:
            return last.reward
        is_cut = len(values) > 1 and self._num_rolled >= config.rollout_depth
        if is_cut and config.published.cut_value is not None:
            return config.published.cut_value
        counted = values if config.published.rollout_value == "mean" else [0.0, *values[1:]]
        return sum(counted) / len(counted)

    def _go_on(self) -> None:
        """Expand the current state unless the budget is gone."""
        if self._expansions.is_stopped:
            self._is_over = True
        else:
            self._expand()

    # -- selecting ----------------------------------------------------------------------------------------------------

    def _selected(self) -> Visited:
        """Down from the root by the highest bound, to a state that was not expanded."""
        state = self.root
        while open_children := state.open_children():
            state = max(open_children, key=lambda child, above=state: self._order(child, above))
        return state

    def _order(self, child: Visited, above: Visited) -> tuple[float, float]:
        published = self.config.published
        score = bound(
            child.value,
            child.visits,
            above.visits,
            mean_of=published.mean_of,
            unvisited=published.unvisited,
            exploration=self.config.exploration,
        )
        return score, child.value if score == math.inf else 0.0

    def _why(self, state: Visited) -> tuple[Option, ...]:
        """The state and its siblings by value, with what they were weighed by."""
        if state.parent is None:
            return ()
        ranked = sorted(state.parent.children or [state], key=lambda sibling: -sibling.value)
        return tuple(Option(s.tip, s.value, (("visits", float(s.visits)),)) for s in ranked[:SHOWN])


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


def back_up(last: Visited, brought: float, *, failed_end: float | None = -1.0) -> None:
    """Take what a visit brought into the values of `last` and of all above it.

    An end whose reward is 0 takes `failed_end` for itself; None = what the others take.
    """
    for state in last.path():
        is_failed = state.has_ended and state.reward == 0
        taken = failed_end if is_failed and failed_end is not None else brought
        state.visit(taken)
        state.value += (taken - state.value) / state.visits
