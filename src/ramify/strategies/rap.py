"""RAP: a tree search over steps that have two rewards, a fast one before a step is taken and its own when it is.

An iteration goes down by upper confidence bounds to a state that nobody went on from, visits it, grows its steps, and
simulates on to an end; each state on the way then learns the rewards from it to the end of the path, together. A step
is grown to be valued at all, so all steps of a state grow at once and the fast judge values each; the judge is asked
for a state when it is first visited. One iteration at a time; other trees fill the engine meanwhile. Ties go to the
step asked for first. Simulating draws one number a state, but for `max`, which draws nothing.

A step whose fast reward or reward failed is dropped, and the iteration that met it is not backed up.

Source: arXiv 2305.14992; maitrix-org/llm-reasoners reasoners/algorithm/mcts.py. Two of its names are not here:
`max_visit`, which it announces and does not have, and the aggregation of answers, which is a vote over candidates.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from ramify.core.command import SHOWN, Candidate, Command, Fork, Grow, Judge, Option, Outcome, siblings
from ramify.core.errors import ConfigError
from ramify.core.strategy import Phase, Vote
from ramify.core.tree import ROOT, Tree
from ramify.strategies.parts.draws import Draws
from ramify.strategies.parts.expansion import Expansion, Expansions, finite_value
from ramify.strategies.parts.proportional import sampled
from ramify.strategies.parts.steering import REWARD, Oracle
from ramify.strategies.parts.ucb import uct
from ramify.strategies.parts.visited import Visited

Output = Literal["max_reward", "follow_max", "max_iter", "last_iter", "last_terminal_iter"]
"""The answer: any visited end, by its rewards; the end met by taking the best step of each state; the end of the
iteration of most reward; of the last iteration, if it met one; of the last that met one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RAPPublished:
    """Switches that only reproduce the published code; the defaults are the corrected behaviour."""

    ends: Literal["closed", "revisited"] = "closed"
    """Whether an iteration may lead again to where nothing more can be learnt (published)."""
    limit_reward: Literal["computed", "fast"] = "computed"
    """Reward of a state at the depth limit that is selected, not simulated to: published is the fast one, so that it
    stays unvisited and is never an answer."""
    last_step: Literal["end", "step"] = "end"
    """Whether a path at the depth limit grows to its end, or stays without one (published)."""
    root_reward: Literal["left_out", "counted"] = "left_out"
    """Whether the root's reward of 0 is part of what an iteration brought (published)."""
    repeats: Literal["dropped", "kept"] = "dropped"
    """A step that says what an earlier one of its state said."""
    no_answer: Literal["any_end", "none"] = "any_end"
    """Where the rule of output finds none: every end that was grown is a candidate, by the fast reward of its last step
    if nobody visited it, or none is (published)."""


@dataclass(frozen=True, slots=True)
class RAPConfig:
    """Defaults are the corrected ones; numbers are those of the code."""

    width: int = 4
    """Steps grown of a state."""
    iterations: int = 10
    """Iterations of the search."""
    depth_limit: int = 5
    """Maximum number of steps of a path."""
    exploration: float = 1.0
    """Weight of the exploration bonus in the UCT score."""
    cum_reward: Literal["sum", "mean"] = "sum"
    """What the rewards of several steps make together."""
    calc_q: Literal["mean", "max"] = "mean"
    """What a state makes of what its iterations brought."""
    simulate: Literal["max", "sample", "random"] = "max"
    """The step taken where nothing is known but fast rewards: the highest, in proportion, or any."""
    output: Output = "max_reward"
    unvisited: Literal["fast_reward", "first"] = "fast_reward"
    """In place of q of a step nobody visited stands its fast reward, or such steps go first, the highest of them."""
    fast_judge: str = "fast"
    """Name of the run's judge of fast rewards: it scores each step that was grown. `reward` is not allowed."""
    judge: str = "process"
    """Name of the run's judge of rewards: it scores a state when it is first visited. `reward` is not allowed."""
    oracle: Oracle = "refused"
    published: RAPPublished = RAPPublished()
    """Switches that reproduce the published code."""

    def __post_init__(self) -> None:
        if min(self.width, self.iterations, self.depth_limit) < 1:
            raise ConfigError(f"rap: width, iterations and depth_limit must be at least 1, got {self!r}")
        if not 0 <= self.exploration < math.inf:
            raise ConfigError(f"rap: exploration = {self.exploration!r} must be finite and at least 0")
        if REWARD in (self.fast_judge, self.judge):
            raise ConfigError("rap: 'reward' values ended paths only; name judges of unfinished ones")

    @property
    def planned_leaves(self) -> int:
        return self.iterations * self.width


AS_PUBLISHED: Final = RAPConfig(
    published=RAPPublished(
        ends="revisited", limit_reward="fast", last_step="step", root_reward="counted", repeats="kept", no_answer="none"
    )
)


class RAP:
    """Select, visit, grow, simulate, back up. `paths` are the last nodes of the iterations, in order.

    A state's value is its fast reward, and its reward None while nobody visited it.
    """

    Config = RAPConfig
    measures: frozenset[str] = frozenset()
    is_order_free = True
    post_hoc_reason = "which steps are grown depends on the rewards of others"
    vote: Vote = "best"

    def __init__(self, config: RAPConfig, rng: Draws) -> None:
        self.config = config
        self.root = Visited(ROOT, reward=0.0)
        self.paths: list[int] = []
        self._rng = rng
        self._expansions = Expansions(
            config.fast_judge, oracle=config.oracle, twins="judged" if config.published.repeats == "kept" else "left"
        )
        self._current = self._selected = self.root
        """Where the iteration in progress stands, and the last state of it that was selected, not simulated to."""
        self._waits_for: Expansion | None = None
        self._is_over = False
        self._output: Candidate | None = None
        """End of an iteration that the rule of output keeps."""

    def ask(self, tree: Tree) -> Sequence[Command]:
        while not self._is_over:
            if self._waits_for is None:
                self._go_on(tree)
            elif self._expansions.is_settled(self._waits_for):
                told, self._waits_for = self._waits_for, None
                self._learn(tree, told)
            else:
                break
        return self._expansions.ask()

    def tell(self, tree: Tree, outcome: Outcome) -> None:
        self._expansions.tell(tree, outcome)

    def is_done(self, tree: Tree) -> bool:
        return self._is_over and not self._expansions

    def phase(self, tree: Tree) -> Phase:
        done, num_rounds = len(self.paths), self.config.iterations
        if self.is_done(tree):
            return Phase("collection", done, num_rounds)
        return Phase("expansion" if self.root.children else "build", done, num_rounds)

    def candidates(self, tree: Tree) -> Sequence[Candidate]:
        """Ends by the rule of output; several are in depth-first order, siblings in order of request."""
        config = self.config
        match config.output:
            case "max_reward":
                found = [self._answer(state) for state in self.root.below() if _is_answer(state)]
            case "follow_max":
                last = _followed(self.root)
                found = [self._answer(last)] if _is_answer(last) else []
            case _:
                found = [] if self._output is None else [self._output]
        if not found and config.published.no_answer == "any_end":
            found = [self._answer(state) for state in self.root.below() if state.has_ended]
        return found

    # -- one iteration ------------------------------------------------------------------------------------------------

    def _go_on(self, tree: Tree) -> None:
        """Take one decision of the iteration in progress."""
        state = self._current
        if self._expansions.is_stopped:
            self._is_over = True
        elif state.reward is None and not self._keeps_fast_reward(state):
            self._value(tree, state)
        elif state.has_ended or state.depth >= self.config.depth_limit or (state.is_expanded and not state.children):
            self._back_up()
        elif state.is_expanded:
            self._current = self._simulated(state.children)
        else:
            self._waits_for = self._grow(state)

    def _best(self, state: Visited, steps: Sequence[Visited]) -> Visited:
        unvisited = [step for step in steps if step.reward is None]
        if self.config.unvisited == "first" and unvisited:
            return max(unvisited, key=lambda step: step.value)
        return max(steps, key=lambda step: self._bound(step, state))

    def _bound(self, step: Visited, above: Visited) -> float:
        """Upper confidence bound; a state without visits counts as if it had one."""
        if step.reward is None or not step.visits:
            q = step.value
        else:
            q = step.best if self.config.calc_q == "max" else step.q
        return uct(q, step.visits or 1, above.visits or 1, exploration=self.config.exploration)

    def _keeps_fast_reward(self, state: Visited) -> bool:
        is_at_limit = state is self._selected and state.depth >= self.config.depth_limit
        return is_at_limit and self.config.published.limit_reward == "fast"

    def _value(self, tree: Tree, state: Visited) -> None:
        """Read the reward of a state that is first visited, or ask for it."""
        state.reward = finite_value(tree, state.tip, self.config.judge, oracle=self.config.oracle)
        if state.reward is None:
            self._waits_for = Expansion([])
            self._expansions.score(self._waits_for, [Judge((state.tip,), self.config.judge)])

    def _grow(self, state: Visited) -> Expansion:
        state.is_expanded = True
        width = self.config.width
        is_last = self.config.published.last_step == "end" and state.depth + 1 == self.config.depth_limit
        until = "end" if is_last else "step"
        fork = Fork(width, "rap", score=state.value)
        grows = siblings(Grow(state.tip, until=until, fork=fork, why=self._why(state)))
        return self._expansions.grow(grows, [0] * width)

    def _why(self, state: Visited) -> tuple[Option, ...]:
        """The state and its siblings as they were weighed, best first."""
        above = state.parent
        if above is None:
            return ()
        weighed = [Option(s.tip, self._bound(s, above), (("fast_reward", s.value),)) for s in above.children]
        return tuple(sorted(weighed, key=lambda option: -option.score)[:SHOWN])

    def _simulated(self, steps: list[Visited]) -> Visited:
        match self.config.simulate:
            case "max":
                return max(steps, key=lambda step: step.value)
            case "sample":
                return steps[sampled([step.value for step in steps], 1, self._rng)[0]]
            case "random":
                return steps[int(self._rng.integers(len(steps)))]

    def _learn(self, tree: Tree, told: Expansion) -> None:
        """Take in what the current state waited for: its reward, or its steps."""
        state = self._current
        if state.reward is None:
            state.reward = finite_value(tree, state.tip, self.config.judge, oracle=self.config.oracle)
            if state.reward is None and state.parent is not None:
                state.parent.children.remove(state)
                self._end_iteration(state.parent)
            return
        for child in told.grown:
            fast_reward = self._expansions.value(tree, child)
            if fast_reward is not None and (child.twin is None or self.config.published.repeats == "kept"):
                state.children.append(Visited(child.tip, state, state.depth + 1, child.has_ended, value=fast_reward))

    def _back_up(self) -> None:
        """Every state of the path learns the rewards from it to the end."""
        config, last = self.config, self._current
        total, count, brought = 0.0, 0, 0.0
        for state in reversed(last.path()):
            if state is not self.root or config.published.root_reward == "counted":
                total, count = total + _reward(state), count + 1
            brought = total if config.cum_reward == "sum" else total / max(1, count)
            state.visit(brought)
        self._keep(last, brought)
        self._end_iteration(last)

    def _keep(self, last: Visited, brought: float) -> None:
        """Keep the end of this iteration if the rule of output says so."""
        found = Candidate(last.tip, brought) if _is_answer(last) else None
        is_better = self._output is None or brought > self._output.score
        match self.config.output:
            case "last_iter":
                self._output = found
            case "last_terminal_iter":
                self._output = found or self._output
            case "max_iter":
                self._output = found if found and is_better else self._output
            case _:
                pass

    def _end_iteration(self, last: Visited) -> None:
        """Close what is exhausted, and select the path of the next iteration."""
        self.paths.append(last.tip)
        if self.config.published.ends == "closed":
            last.close_if_exhausted()
        self._is_over = len(self.paths) >= self.config.iterations or self.root.is_closed or not self.root.children
        state = self.root
        while open_steps := state.open_children():
            state = self._best(state, open_steps)
        self._current = self._selected = state

    def _answer(self, state: Visited) -> Candidate:
        """An end by the rewards of its steps."""
        rewards = [_reward(step) for step in state.path()[1:]]
        total = sum(rewards)
        return Candidate(state.tip, total if self.config.cum_reward == "sum" else total / len(rewards))


def _reward(state: Visited) -> float:
    """Its reward, or the fast one in its place."""
    return state.value if state.reward is None else state.reward


def _is_answer(state: Visited) -> bool:
    """Whether its path ended and was visited."""
    return state.has_ended and state.reward is not None


def _followed(state: Visited) -> Visited:
    """Where one comes to by the visited step of highest reward, again and again."""
    while visited := [child for child in state.children if child.reward is not None]:
        state = max(visited, key=_reward)
    return state
