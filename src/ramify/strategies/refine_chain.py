"""Refine chain: a sequence of answers; each is written from feedback on the previous one.

Self-Refine asks a model for feedback and stops when the feedback approves the answer. Reflexion stops when the answer
passes a check, and an attempt may read several previous reflections. The judge decides in both: an answer or a feedback
with a score of `approve` or more is approved. A failed judgement approves nothing. If an attempt or its feedback
failed, or the budget refused a command, the chain ends with the answers it has. Draws nothing.

The run defines the actions: `policy` for the first attempt, `feedback`, and `rewrite`, which quotes the feedback. With
a `window` of k, the templates of `rewrite_2` … `rewrite_k` quote that many feedbacks. Source: arXiv 2303.17651; arXiv
2303.11366, whose code lets hidden tests decide whether to continue: a judge that needs `oracle = "declared"`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, assert_never

from ramify.core.command import Candidate, Command, Failed, Grow, Grown, Judge, Judged, Outcome
from ramify.core.errors import ConfigError
from ramify.core.strategy import Phase, Vote
from ramify.core.tree import ROOT, Tree
from ramify.strategies.parts.draws import Draws
from ramify.strategies.parts.flight import InFlight
from ramify.strategies.parts.steering import REWARD, Oracle, allowed_value, steering_value

Stage = Literal["attempt", "feedback", "judge_attempt", "judge_feedback"]


@dataclass(frozen=True, slots=True)
class RefineChainConfig:
    """How long a chain continues, and what stops it."""

    max_attempts: int = 4
    """Maximum number of answers, the first included. Self-Refine's."""
    feedback: str = "critique"
    """Action that says what is wrong with an answer."""
    window: int = 1
    """Maximum number of feedbacks that a rewrite may quote: 1 in Reflexion's code, 3 in its paper."""
    stop: Literal["answer", "feedback", "never"] = "answer"
    """What is judged: each answer (Reflexion), each feedback (Self-Refine), or nothing."""
    judge: str = "grade"
    """Name of the run's judge; '' if nothing is judged."""
    approve: float = 1.0
    """Score from which on an answer or a feedback is approved, which ends the chain."""
    approved: Literal["kept", "rewritten"] = "kept"
    """If the feedback approves an answer: the answer is kept as the last one, or rewritten once more (published)."""
    oracle: Oracle = "refused"

    def __post_init__(self) -> None:
        if min(self.max_attempts, self.window) < 1:
            raise ConfigError(f"refine_chain: max_attempts and window must be at least 1, got {self!r}")
        if not self.feedback or (self.stop != "never" and self.judge in ("", REWARD)):
            raise ConfigError(f"refine_chain: judge = {self.judge!r}: rewrites have no reward; name a judge of the run")
        if not -1e300 < self.approve < 1e300:
            raise ConfigError(f"refine_chain: approve = {self.approve!r} must be finite")

    @property
    def planned_leaves(self) -> int:
        return self.max_attempts


SELF_REFINE: Final = RefineChainConfig(stop="feedback", approved="rewritten")
"""Self-Refine's code."""


class RefineChain:
    """Write an attempt, have it judged, ask for feedback, write the next attempt."""

    Config = RefineChainConfig
    measures: frozenset[str] = frozenset()
    is_order_free = True
    post_hoc_reason = "how long the chain is depends on what is said of its answers"
    vote: Vote = "best"

    def __init__(self, config: RefineChainConfig, rng: Draws) -> None:
        self.config = config
        self._attempts: list[int] = []
        """Last nodes of the answers, in order."""
        self._feedback = ROOT
        """Last node of the latest feedback."""
        self._next: tuple[Command, Stage] | None = (Grow(ROOT), "attempt")
        self._in_flight: InFlight[Stage] = InFlight()
        self._is_last = False
        """Whether the next attempt is the last one, whatever its feedback or score."""

    def ask(self, tree: Tree) -> Sequence[Command]:
        if self._next is None:
            return []
        (command, stage), self._next = self._next, None
        return self._in_flight.book([command], [stage])

    def tell(self, tree: Tree, outcome: Outcome) -> None:
        stage = self._in_flight.take(outcome)
        if isinstance(outcome, Failed) and (outcome.reason == "budget" or stage in ("attempt", "feedback")):
            return
        match stage:
            case "attempt":
                self._take_attempt(tree, outcome)
            case "feedback":
                self._take_feedback(outcome)
            case "judge_attempt":
                if not self._is_approved(outcome, self._attempts[-1]):
                    self._ask_feedback()
            case "judge_feedback":
                self._go_on(is_approved=self._is_approved(outcome, self._feedback))
            case _:
                assert_never(stage)

    def is_done(self, tree: Tree) -> bool:
        return self._next is None and not self._in_flight

    def phase(self, tree: Tree) -> Phase:
        name = "collection" if self.is_done(tree) else "expansion" if self._attempts else "build"
        return Phase(name, len(self._attempts), self.config.max_attempts)

    def candidates(self, tree: Tree) -> Sequence[Candidate]:
        """Every answer, scored by its place in the chain, so the last answer wins."""
        return [Candidate(tip, float(place)) for place, tip in enumerate(self._attempts)]

    def _take_attempt(self, tree: Tree, outcome: Outcome) -> None:
        if not isinstance(outcome, Grown):
            return
        self._attempts.append(outcome.tip)
        if self._is_last or len(self._attempts) == self.config.max_attempts:
            return
        if self.config.stop != "answer":
            self._ask_feedback()
        elif all(score.judge != self.config.judge for score in tree.scores(outcome.tip)):
            self._next = Judge((outcome.tip,), self.config.judge), "judge_attempt"
        elif not self._is_enough(steering_value(tree, outcome.tip, self.config.judge, oracle=self.config.oracle)):
            self._ask_feedback()

    def _take_feedback(self, outcome: Outcome) -> None:
        if not isinstance(outcome, Grown):
            return
        self._feedback = outcome.tip
        if self.config.stop == "feedback":
            self._next = Judge((outcome.tip,), self.config.judge), "judge_feedback"
        else:
            self._ask_rewrite()

    def _go_on(self, *, is_approved: bool) -> None:
        """A feedback was judged."""
        self._is_last = is_approved
        if not is_approved or self.config.approved == "rewritten":
            self._ask_rewrite()

    def _ask_feedback(self) -> None:
        self._next = Grow(self._attempts[-1], action=self.config.feedback), "feedback"

    def _ask_rewrite(self) -> None:
        cited = min(len(self._attempts), self.config.window)
        self._next = Grow(self._feedback, action="rewrite" if cited == 1 else f"rewrite_{cited}"), "attempt"

    def _is_approved(self, outcome: Outcome, node: int) -> bool:
        if not isinstance(outcome, Judged):
            return False
        return self._is_enough(allowed_value(outcome.scores[0], node, oracle=self.config.oracle))

    def _is_enough(self, value: float | None) -> bool:
        return value is not None and value >= self.config.approve
