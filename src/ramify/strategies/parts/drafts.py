"""Drafts: the common part of searches over whole answers, from the command that grows an answer to its score.

Each node of such a search is an answer. An answer from the bare prompt grows by one of `first_actions`. A derived
answer quotes its source and grows by the action of `actions` at the same index. The two actions together are one way of
answering: a model or a prompt, which the search can compare by scores. Each answer grows to its end and is judged once,
unless the judge has already scored it. A failed or unscored answer is never grown from.

A score outside the declared range raises an error, because posteriors and bounds would be meaningless.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Generic, Literal, TypeVar

from ramify.core.command import Candidate, Command, Failed, Fork, Grow, Grown, Judge, Judged, Option, Outcome
from ramify.core.errors import ConfigError, ContractError
from ramify.core.strategy import Phase, Vote
from ramify.core.tree import NONE, Tree
from ramify.strategies.parts.flight import InFlight
from ramify.strategies.parts.spent import is_spent
from ramify.strategies.parts.steering import REWARD, Oracle, allowed_value, steering_value

Refill = Literal["each", "all"]
"""When more answers are asked for: after each answer that ended, or when the whole last batch has ended."""
START: Final = 0
"""Number of the bare prompt, from which every answer descends. Answers are numbered after it."""


@dataclass(frozen=True, slots=True)
class DraftsConfig:
    """How answers are grown and scored."""

    first_actions: tuple[str, ...] = ("policy",)
    """Actions of the run that answer the bare prompt, one for each way of answering."""
    actions: tuple[str, ...] = ("refine",)
    """Actions that quote an answer and write another, in the same order; empty = every answer comes from the bare
    prompt."""
    judge: str = "llm"
    """Name of the run's judge. `reward`, the reward of ended paths, is allowed only without `actions`."""
    score_range: tuple[float, float] = (0.0, 1.0)
    """Lowest and highest score of the judge, mapped to 0 and 1; (-100, 100) for self-reward."""
    oracle: Oracle = "refused"
    vote: Vote = "best"
    num_answers: int = 16
    """Number of answers to grow, failed ones included."""

    def __post_init__(self) -> None:
        ways = len(self.first_actions)
        if not ways or len(self.actions) not in (0, ways) or len(set(self.ways)) < ways:
            raise ConfigError(
                f"first_actions = {self.first_actions!r}, actions = {self.actions!r}: one of each for every way of "
                "answering, no two ways alike; or no actions at all"
            )
        if self.actions and self.judge == REWARD:
            raise ConfigError("judge = 'reward': answers that quote others have no reward; name a judge of the run")
        low, high = self.score_range
        if not -1e300 < low < high < 1e300:
            raise ConfigError(f"score_range = {self.score_range!r}: two finite numbers, the smaller first")
        if self.num_answers < 1:
            raise ConfigError(f"num_answers = {self.num_answers!r} must be at least 1")

    @property
    def ways(self) -> tuple[tuple[str, str], ...]:
        """The two actions of each way of answering."""
        return tuple(zip(self.first_actions, self.actions or ("",) * len(self.first_actions), strict=True))

    @property
    def planned_leaves(self) -> int:
        return self.num_answers


@dataclass(slots=True, eq=False)
class Draft:
    """One answer in progress: asked for, then grown, then scored or not. `Drafts` mutates it from then on."""

    parent: int = START
    """Number of the answer it is derived from."""
    way: int = 0
    number: int = NONE
    """Number of this answer, in the order asked."""
    tip: int = NONE
    """Its last node; -1 = not grown, or failed."""
    score: float | None = None
    """Between 0 and 1; None = it has none."""


D = TypeVar("D", bound=Draft)


class Drafts(Generic[D]):
    """All answers of a search, finished and in flight. Mutated by `grow`, `ask` and `tell`."""

    def __init__(self, config: DraftsConfig) -> None:
        self.config = config
        self.tips = [START]
        """By number: the last node of an answer; -1 if it has none."""
        self.scores: list[float | None] = [None]
        self.num_left = config.num_answers
        """Answers that may still be asked for; 0 once the budget has refused something, or the tree is spent."""
        self.num_open = 0
        """Answers in flight."""
        self._in_flight: InFlight[D] = InFlight()
        self._unjudged: list[D] = []

    def room(self, max_in_flight: int, refill: Refill) -> int:
        """Answers that may be asked for now."""
        return 0 if self.num_open and refill == "all" else min(self.num_left, max_in_flight - self.num_open)

    @property
    def is_done(self) -> bool:
        return not self.num_left and not self.num_open

    def grow(self, draft: D, *, fork: Fork, why: tuple[Option, ...] = ()) -> Grow:
        """The command that grows one more answer. Numbers the answer."""
        draft.number = len(self.tips)
        self.num_open += 1
        self.num_left -= 1
        self.tips.append(NONE)
        self.scores.append(None)
        actions = self.config.first_actions if draft.parent == START else self.config.actions
        return Grow(self.tips[draft.parent], action=actions[draft.way], fork=fork, why=why)

    def ask(self, drafts: Sequence[D], grows: Sequence[Grow]) -> Sequence[Command]:
        """The waiting judgements, then the growths of the new drafts."""
        if not (drafts or self._unjudged):
            return []
        judged, self._unjudged = self._unjudged, []
        judges = [Judge((draft.tip,), self.config.judge) for draft in judged]
        return self._in_flight.book([*judges, *grows], [*judged, *drafts])

    def tell(self, tree: Tree, outcome: Outcome) -> D | None:
        """Learn an outcome. Returns the draft that this outcome completes; None if the draft still has to be judged."""
        draft = self._in_flight.take(outcome)
        if isinstance(outcome, Grown):
            draft.tip = self.tips[draft.number] = outcome.tip
            self.num_left = 0 if is_spent(tree, outcome.tip) else self.num_left
            if self._is_to_judge(tree, outcome.tip):
                self._unjudged.append(draft)
                return None
            self._score(draft, steering_value(tree, outcome.tip, self.config.judge, oracle=self.config.oracle))
        elif isinstance(outcome, Judged):
            self._score(draft, allowed_value(outcome.scores[0], draft.tip, oracle=self.config.oracle))
        elif isinstance(outcome, Failed):
            self.num_left = 0 if outcome.reason == "budget" else self.num_left
        self.num_open -= 1
        return draft

    def phase(self) -> Phase:
        num_ended, num_answers = len(self.tips) - 1 - self.num_open, self.config.num_answers
        if self.is_done:
            return Phase("collection", num_ended, num_answers)
        return Phase("expansion" if len(self.tips) > 1 else "build", num_ended, num_answers)

    def candidates(self) -> list[Candidate]:
        """Every answer in the order asked. An answer without a score is included only where the vote needs no
        scores."""
        needs_score = self.config.vote in ("best", "weighted")
        rows = zip(self.tips[1:], self.scores[1:], strict=True)
        return [Candidate(tip, s or 0.0) for tip, s in rows if tip != NONE and not (needs_score and s is None)]

    def _is_to_judge(self, tree: Tree, tip: int) -> bool:
        judge, scores = self.config.judge, tree.scores(tip)
        return judge != REWARD and not (scores and any(score.judge == judge for score in scores))

    def _score(self, draft: D, value: float | None) -> None:
        if value is None:
            return
        low, high = self.config.score_range
        if not low <= value <= high:
            raise ContractError(
                f"judge {self.config.judge!r} gave node {draft.tip} {value!r}, which is not between {low!r} and "
                f"{high!r}; say by strategy.options.score_range how its scores lie"
            )
        draft.score = self.scores[draft.number] = (value - low) / (high - low)


class DraftSearch(Generic[D]):
    """What every strategy that searches with drafts declares and answers alike. It owns the drafts."""

    measures: frozenset[str] = frozenset()
    post_hoc_reason = "what is derived from which answer depends on the scores of others"

    def __init__(self, config: DraftsConfig) -> None:
        self.vote: Vote = config.vote
        self._drafts: Drafts[D] = Drafts(config)

    def is_done(self, tree: Tree) -> bool:
        return self._drafts.is_done

    def phase(self, tree: Tree) -> Phase:
        return self._drafts.phase()

    def candidates(self, tree: Tree) -> Sequence[Candidate]:
        return self._drafts.candidates()
