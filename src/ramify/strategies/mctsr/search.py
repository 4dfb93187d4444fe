"""MCTSr: a tree of whole answers. Each answer refines the one above it, by a critique and a rewrite that quotes it.

A rollout chooses an answer, judges it again and asks for a critique at the same time, then asks for a rewrite, judges
the rewrite, and backs up. Any number of rollouts may be in flight. The chosen answer is reserved at ask; an answer
whose children and reservations reach `max_children` is not a candidate. If there is no candidate, the search waits for
the rollouts in flight.

A rollout whose critique, rewrite or judgement failed is over and counts as one. By default an answer that was never
judged is neither refined nor returned. If the budget refuses a command, nothing more is grown; answers already grown
are still judged. One draw for each rollout, at ask; none if greedy. Ties are broken breadth first by default.

The run defines the actions: `policy` (or `dummy`), `critique` and `rewrite`; the last two quote. The switches are in
`config.py`. Source: arXiv 2406.07394; BrendanGraham14/mcts-llm src/mcts_llm/mctsr.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, assert_never

from ramify.core.command import SHOWN, Candidate, Command, Failed, Fork, Grow, Grown, Judge, Judged, Option, Outcome
from ramify.core.strategy import Phase, Vote
from ramify.core.tree import NONE, ROOT, Tree
from ramify.strategies.mctsr.answers import AnswerTree, MCTSrAnswer
from ramify.strategies.mctsr.config import MCTSrConfig
from ramify.strategies.parts.draws import Draws
from ramify.strategies.parts.flight import InFlight
from ramify.strategies.parts.steering import allowed_value, steering_value

ACTIONS: Final = {"zero_shot": ("policy",), "dummy": ("dummy",), "both": ("policy", "dummy")}
"""Actions that write the first answers."""
Stage = Literal["answer", "judge", "critique", "rewrite", "check"]


@dataclass(slots=True, eq=False)
class _Rollout:
    """One answer in progress. Only the strategy mutates it."""

    parent: int = NONE
    """Number of the answer it refines; -1 = none."""
    critique: int = NONE
    tip: int = NONE
    """Last node of the new answer."""
    num_open: int = 0
    """Outcomes it still waits for."""
    is_judged: bool = False
    """Whether the answer it refines was judged once more."""
    has_succeeded: bool = False
    """Whether the new answer was added to the tree of answers."""


class MCTSr:
    """Choose an answer, judge it again, criticise it, rewrite it, judge the rewrite, back up."""

    Config = MCTSrConfig
    measures: frozenset[str] = frozenset()
    is_order_free = False
    post_hoc_reason = "which answers are refined depends on how others were judged"

    def __init__(self, config: MCTSrConfig, rng: Draws) -> None:
        self.config = config
        self.vote: Vote = config.vote
        self.answers = AnswerTree(config)
        self.stuck_at: int | None = None
        """The rollout that ended the search because its choice had no distribution (published rules); None = none."""
        self._rng = rng
        self._in_flight: InFlight[tuple[Stage, _Rollout]] = InFlight()
        self._ready: list[tuple[Command, Stage, _Rollout]] = []
        self._num_judgements: dict[int, int] = {}
        """Last node of an answer -> number of judgements asked for."""
        self._num_begun = self._num_ended = 0
        """Rollouts from an answer."""
        self._num_starting = 0
        """First answers still in flight."""
        self._has_begun = self._is_over = False

    # -- the strategy -----------------------------------------------------------------------------------------------

    def ask(self, tree: Tree) -> Sequence[Command]:
        if not self._has_begun:
            self._has_begun = True
            self._begin()
        while self._may_refine() and self._has_room():
            self._refine()
        ready, self._ready = self._ready, []
        commands = [command for command, _, _ in ready]
        return self._in_flight.book(commands, [(stage, rollout) for _, stage, rollout in ready])

    def tell(self, tree: Tree, outcome: Outcome) -> None:
        stage, rollout = self._in_flight.take(outcome)
        rollout.num_open -= 1
        if isinstance(outcome, Failed) and outcome.reason == "budget":
            self._is_over = True
        match stage:
            case "answer" | "rewrite":
                self._take_answer(tree, rollout, outcome)
            case "judge":
                self._take_judgement(rollout, outcome)
            case "critique":
                rollout.critique = outcome.tip if isinstance(outcome, Grown) else NONE
            case "check":
                self._take_check(rollout, outcome)
            case _:
                assert_never(stage)
        if stage in ("judge", "critique") and self._is_to_rewrite(rollout):
            self._ask(Grow(rollout.critique, action="rewrite"), "rewrite", rollout)
        if not rollout.num_open:
            self._end(rollout)

    def is_done(self, tree: Tree) -> bool:
        return self._has_begun and not self._in_flight and not self._ready and not self._may_refine()

    def phase(self, tree: Tree) -> Phase:
        if not self._num_begun and not self.is_done(tree):
            return Phase("build")
        name = "collection" if self.is_done(tree) else "expansion"
        return Phase(name, self._num_ended, self.config.max_rollouts)

    def candidates(self, tree: Tree) -> Sequence[Candidate]:
        """Every judged answer, breadth first, which decides ties. With the published `answer_by = "q"`, answers never
        judged are included."""
        if self.config.published.answer_by == "q":
            return [Candidate(answer.node, answer.q) for answer in self.answers.breadth_first()]
        return [Candidate(answer.node, answer.own_q) for answer in self.answers.breadth_first() if answer.samples]

    # -- asking -----------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        actions = ACTIONS[self.config.initialise]
        fork = Fork(len(actions), "first answers")
        self._num_starting = len(actions)
        for action in actions:
            self._ask(Grow(ROOT, action=action, fork=fork), "answer", _Rollout())

    def _may_refine(self) -> bool:
        """Whether another rollout should start once there is room. O(1)."""
        is_left = not self._is_over and self._num_begun < self.config.max_rollouts
        return is_left and not self._num_starting and len(self.answers) > 0

    def _has_room(self) -> bool:
        """Whether a rollout may start now."""
        num_refining = self._num_begun - self._num_ended
        return not num_refining or (num_refining < self.config.in_flight and self.answers.has_open())

    def _refine(self) -> None:
        """Choose an answer; ask for its judgement and its critique, which are independent of each other."""
        found = self.answers.choose(self._rng, shown=SHOWN)
        if not found:
            self._is_over, self.stuck_at = True, self._num_begun
            return
        chosen, visits = found[0][0], self.answers.visits
        why = tuple(Option(a.node, score, (("q", a.q), ("visits", float(visits[a.number])))) for a, score in found)
        self._num_begun += 1
        self.answers.reserve(chosen)
        rollout = _Rollout(chosen.number)
        self._ask(self._judge(chosen.node), "judge", rollout)
        self._ask(Grow(chosen.node, action="critique", why=why), "critique", rollout)

    def _ask(self, command: Command, stage: Stage, rollout: _Rollout) -> None:
        rollout.num_open += 1
        self._ready.append((command, stage, rollout))

    def _judge(self, node: int) -> Judge:
        """The judge's next sample for an answer. A failed judgement keeps its number; the next one gets a new
        number."""
        attempt = self._num_judgements.get(node, 0)
        self._num_judgements[node] = attempt + 1
        return Judge((node,), self.config.judge, attempt)

    # -- learning ---------------------------------------------------------------------------------------------------

    def _take_answer(self, tree: Tree, rollout: _Rollout, outcome: Outcome) -> None:
        """An answer has grown: ask for its judgement, and show it to the stop judge if there is one."""
        if not isinstance(outcome, Grown):
            return
        rollout.tip = outcome.tip
        if rollout.parent == NONE and self.config.published.judge_root == "when_selected":
            self.answers.add(rollout.tip, NONE, None)
        else:
            self._ask(self._judge(rollout.tip), "judge", rollout)
        stop = self.config.stop_judge
        if any(score.judge == stop for score in tree.scores(rollout.tip)):
            self._stop_at(steering_value(tree, rollout.tip, stop, oracle=self.config.oracle))
        elif stop:
            self._ask(Judge((rollout.tip,), stop), "check", rollout)

    def _take_judgement(self, rollout: _Rollout, outcome: Outcome) -> None:
        """Record a judgement: one more sample of the refined answer, or the first sample of the new one."""
        value = self._value(rollout, outcome)
        if value is None and self.config.published.judge_failure == "ends_search":
            self._is_over = True
        if rollout.tip == NONE:
            if value is not None:
                rollout.is_judged = True
                self.answers.learn(self._parent(rollout), value)
        elif rollout.parent == NONE:
            self.answers.add(rollout.tip, NONE, value)
        elif value is not None:
            rollout.has_succeeded = True
            self.answers.add(rollout.tip, rollout.parent, value)

    def _take_check(self, rollout: _Rollout, outcome: Outcome) -> None:
        self._stop_at(self._value(rollout, outcome))

    def _stop_at(self, value: float | None) -> None:
        if value is not None and value >= 1:
            self._is_over = True

    def _is_to_rewrite(self, rollout: _Rollout) -> bool:
        """Whether both the judgement and the critique have arrived."""
        is_ready = rollout.is_judged and rollout.critique != NONE and rollout.tip == NONE
        return is_ready and not rollout.num_open and not self._is_over

    def _end(self, rollout: _Rollout) -> None:
        """Finish a rollout that has nothing in flight any more."""
        if rollout.parent == NONE:
            self._num_starting -= 1
            return
        self._num_ended += 1
        if rollout.has_succeeded:
            self.answers.back_up(self._parent(rollout))
        else:
            self.answers.count_failure(self._parent(rollout))
        self.answers.release(self._parent(rollout))

    def _value(self, rollout: _Rollout, outcome: Outcome) -> float | None:
        if not isinstance(outcome, Judged):
            return None
        return allowed_value(outcome.scores[0], rollout.tip, oracle=self.config.oracle)

    def _parent(self, rollout: _Rollout) -> MCTSrAnswer:
        return self.answers.answers[rollout.parent]
