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
from ramify.strategies.parts.rap_state import Aggregate, CalcQ, RAPState, all_states, bound, log_visits
from ramify.strategies.parts.steering import REWARD, Oracle

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
    depth_limit: int = 5
    exploration: float = 1.0
    cum_reward: Aggregate = "sum"
    """What the rewards of several steps make together."""
    calc_q: CalcQ = "mean"
    """What a state makes of what its iterations brought."""
    simulate: Literal["max", "sample", "random"] = "max"
    """The step taken where nothing is known but fast rewards: the highest, in proportion, or any."""
    output: Output = "max_reward"
    unvisited: Literal["fast_reward", "first"] = "fast_reward"
    """In place of q of a step nobody visited stands its fast reward, or such steps go first, the highest of them."""
    fast_judge: str = "fast"
    judge: str = "process"
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


AS_PUBLISHED: Final = RAPConfig(
    published=RAPPublished(
        ends="revisited", limit_reward="fast", last_step="step", root_reward="counted", repeats="kept", no_answer="none"
    )
)


class RAP:
    """Select, visit, grow, simulate, back up. `paths` are the last nodes of the iterations, in order."""

    Config = RAPConfig
    measures: frozenset[str] = frozenset()
    is_order_free = True
    post_hoc_reason = "which steps are grown depends on the rewards of others"
    vote: Vote = "best"

    def __init__(self, config: RAPConfig, rng: Draws) -> None:
        self.config = config
        self.root = RAPState(ROOT, reward=0.0)
        self.paths: list[int] = []
        self._rng = rng
        self._expansions = Expansions(
            config.fast_judge, oracle=config.oracle, twins="judged" if config.published.repeats == "kept" else "left"
        )
        self._path: list[RAPState] = []
        """Of the iteration in progress."""
        self._num_selected = 0
        """States of it that were selected; the others were simulated to."""
        self._waits_for: Expansion | None = None
        self._num_iterations = 0
        self._is_over = False
        self._output: Candidate | None = None
        """End of an iteration that the rule of output keeps."""

    def ask(self, tree: Tree) -> Sequence[Command]:
        while not self._is_over:
            if self._waits_for is not None:
                if not self._expansions.is_settled(self._waits_for):
                    break
                self._learn(tree, self._waits_for)
                self._waits_for = None
            self._go_on(tree)
        return self._expansions.ask()

    def tell(self, tree: Tree, outcome: Outcome) -> None:
        self._expansions.tell(tree, outcome)

    def is_done(self, tree: Tree) -> bool:
        return self._is_over and not self._expansions

    def phase(self, tree: Tree) -> Phase:
        done, num_rounds = self._num_iterations, self.config.iterations
        if self.is_done(tree):
            return Phase("collection", done, num_rounds)
        return Phase("build" if self.root.children is None else "expansion", done, num_rounds)

    def candidates(self, tree: Tree) -> Sequence[Candidate]:
        """Ends by the rule of output; several are in depth-first order, siblings in order of request."""
        config = self.config
        match config.output:
            case "max_reward":
                found = [self._answer(state) for state in all_states(self.root) if state.is_answer]
            case "follow_max":
                last = self.root.followed()
                found = [self._answer(last)] if last.is_answer else []
            case _:
                found = [] if self._output is None else [self._output]
        if not found and config.published.no_answer == "any_end":
            found = [self._answer(state) for state in all_states(self.root) if state.has_ended]
        return found

    # -- one iteration ------------------------------------------------------------------------------------------------

    def _go_on(self, tree: Tree) -> None:
        """Take one decision of the iteration in progress, or begin one."""
        if self._expansions.is_stopped or (not self._path and not self._begin()):
            self._is_over = True
            return
        state = self._path[-1]
        if state.reward is None and not self._keeps_fast_reward(state):
            self._value(tree, state)
        elif self._is_last(state) or state.children == []:
            self._back_up()
        elif state.children is None:
            self._waits_for = self._grow(state)
        else:
            self._path.append(self._simulated(state.children))

    def _begin(self) -> bool:
        """Select a path; False where the search is over."""
        if self._num_iterations >= self.config.iterations or self.root.is_closed or self.root.children == []:
            return False
        state = self.root
        self._path = [state]
        while not self._is_last(state) and (open_steps := self._open_steps(state)):
            state = self._best(state, open_steps)
            self._path.append(state)
        self._num_selected = len(self._path)
        return True

    def _open_steps(self, state: RAPState) -> list[RAPState]:
        return [child for child in state.children or () if not child.is_closed]

    def _best(self, state: RAPState, steps: Sequence[RAPState]) -> RAPState:
        unvisited = [step for step in steps if step.reward is None]
        if self.config.unvisited == "first" and unvisited:
            return max(unvisited, key=lambda step: step.fast_reward)
        return steps[_first_highest(self._bounds(steps, state))]

    def _bounds(self, steps: Sequence[RAPState], above: RAPState) -> list[float]:
        """Upper confidence bounds of some steps of a state."""
        calc_q, exploration, spread = self.config.calc_q, self.config.exploration, log_visits(above.visits)
        return [bound(step.q(calc_q), step.visits, spread, exploration=exploration) for step in steps]

    def _is_last(self, state: RAPState) -> bool:
        return state.has_ended or state.depth >= self.config.depth_limit

    def _keeps_fast_reward(self, state: RAPState) -> bool:
        is_selected = len(self._path) == self._num_selected
        return is_selected and state.depth >= self.config.depth_limit and self.config.published.limit_reward == "fast"

    def _value(self, tree: Tree, state: RAPState) -> None:
        """Read the reward of a state that is first visited, or ask for it."""
        state.reward = finite_value(tree, state.tip, self.config.judge, oracle=self.config.oracle)
        if state.reward is None:
            self._waits_for = Expansion([])
            self._expansions.score(self._waits_for, [Judge((state.tip,), self.config.judge)])

    def _grow(self, state: RAPState) -> Expansion:
        width = self.config.width
        is_last = self.config.published.last_step == "end" and state.depth + 1 == self.config.depth_limit
        until = "end" if is_last else "step"
        fork = Fork(width, "rap", score=state.fast_reward)
        grows = siblings(Grow(state.tip, until=until, fork=fork, why=self._why(state)))
        return self._expansions.grow(grows, [0] * width)

    def _why(self, state: RAPState) -> tuple[Option, ...]:
        """The state and its siblings as they were weighed, best first."""
        if state.above is None:
            return ()
        children = state.above.children or []
        bounds = self._bounds(children, state.above)
        weighed = [
            Option(s.tip, score, (("fast_reward", s.fast_reward),)) for s, score in zip(children, bounds, strict=True)
        ]
        return tuple(sorted(weighed, key=lambda candidate: -candidate.score)[:SHOWN])

    def _simulated(self, steps: list[RAPState]) -> RAPState:
        match self.config.simulate:
            case "max":
                return max(steps, key=lambda step: step.fast_reward)
            case "sample":
                return steps[sampled([step.fast_reward for step in steps], 1, self._rng)[0]]
            case "random":
                return steps[int(self._rng.integers(len(steps)))]

    def _learn(self, tree: Tree, told: Expansion) -> None:
        """Take in what the last state of the path waited for: its reward, or its steps."""
        state = self._path[-1]
        if state.reward is None:
            state.reward = finite_value(tree, state.tip, self.config.judge, oracle=self.config.oracle)
            if state.reward is None:
                state.drop()
                self._path.pop()
                self._end_iteration()
            return
        state.children = []
        for child in told.grown:
            fast_reward = self._expansions.value(tree, child)
            if fast_reward is not None and (child.twin is None or self.config.published.repeats == "kept"):
                step = RAPState(child.tip, state, state.depth + 1, has_ended=child.has_ended, fast_reward=fast_reward)
                state.children.append(step)

    def _back_up(self) -> None:
        """Every state of the path learns the rewards from it to the end."""
        config, last = self.config, self._path[-1]
        total, count, brought = 0.0, 0, 0.0
        for state in reversed(self._path):
            if state is not self.root or config.published.root_reward == "counted":
                total, count = total + state.counted_reward, count + 1
            brought = total if config.cum_reward == "sum" else total / max(1, count)
            state.add(brought)
        self._keep(last, brought)
        self._end_iteration()

    def _keep(self, last: RAPState, brought: float) -> None:
        """Keep the end of this iteration if the rule of output says so."""
        found = Candidate(last.tip, brought) if last.is_answer else None
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

    def _end_iteration(self) -> None:
        self.paths.append(self._path[-1].tip)
        self._num_iterations += 1
        if self.config.published.ends == "closed":
            for state in reversed(self._path):
                state.is_closed = self._is_last(state) or (state.children is not None and not self._open_steps(state))
                if not state.is_closed:
                    break
        self._path = []

    def _answer(self, state: RAPState) -> Candidate:
        """An end by the rewards of its steps."""
        rewards = [step.counted_reward for step in state.path()]
        total = sum(rewards)
        return Candidate(state.tip, total if self.config.cum_reward == "sum" else total / len(rewards))


def _first_highest(scores: list[float]) -> int:
    return scores.index(max(scores))
