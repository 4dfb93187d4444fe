"""Drafts: what searches over whole answers have in common, from the command that grows one to its score.

A node of such a search is an answer. One from the bare prompt grows by one of `first_actions`; one that is derived from
another quotes it, by the action of `actions` at the same place. Both together are one way of answering, a model or a
prompt, which scores speak for. Each answer is grown to its end and judged once, unless the judge has already spoken.
What failed, or was given no score, is never grown from.

A score outside the declared range is refused: posteriors and bounds mean nothing then.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Generic, Literal, TypeVar

from ramify.core.command import Candidate, Command, Failed, Fork, Grow, Grown, Judge, Judged, Option, Outcome
from ramify.core.errors import ConfigError, ContractError
from ramify.core.strategy import Phase, Vote
from ramify.core.tree import NONE, Tree
from ramify.strategies.parts.flight import InFlight
from ramify.strategies.parts.steering import REWARD, Oracle, allowed_value, steering_value

Refill = Literal["each", "all"]
"""When more is asked for: for each answer that ended, or when all of the last batch have."""
START: Final = 0
"""Number of the bare prompt, which every answer is derived from in the end; answers are numbered behind it."""


@dataclass(frozen=True, slots=True)
class DraftsConfig:
    """How answers come about and what they are scored by."""

    first_actions: tuple[str, ...] = ("policy",)
    """Actions of the run that answer the bare prompt, one for each way of answering."""
    actions: tuple[str, ...] = ("refine",)
    """Actions that quote an answer and give another, in the same order; none = every answer is a first one."""
    judge: str = "llm"
    """Name of the run's judge; the reward of ended paths will do only without `actions`."""
    score_range: tuple[float, float] = (0.0, 1.0)
    """Least and greatest score of the judge, which are mapped to 0 and 1; (-100, 100) for self-reward."""
    oracle: Oracle = "refused"
    vote: Vote = "best"
    num_answers: int = 16
    """Answers to grow, those that fail too."""

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


@dataclass(slots=True, eq=False)
class Draft:
    """One answer on its way: asked for, then grown, then scored or not. Mutated by `Drafts` once it is asked for."""

    parent: int = START
    """Number of the answer it is derived from."""
    way: int = 0
    number: int = NONE
    """Of the answer, in the order asked."""
    tip: int = NONE
    """Its last node; -1 = not grown, or failed."""
    score: float | None = None
    """Between 0 and 1; None = it has none."""


D = TypeVar("D", bound=Draft)


class Drafts(Generic[D]):
    """Every answer of a search, and those on their way. Mutated by `grows`, `ask` and `tell`."""

    def __init__(self, config: DraftsConfig) -> None:
        self.config = config
        self.tips = [START]
        """By number: the last node of an answer, -1 where there is none."""
        self.scores: list[float | None] = [None]
        self.num_left = config.num_answers
        """Answers that may still be asked for; none once the budget has refused something."""
        self.num_open = 0
        """Answers on their way."""
        self._in_flight: InFlight[D] = InFlight()
        self._unjudged: list[D] = []

    def room(self, max_in_flight: int, refill: Refill) -> int:
        """Answers that may be asked for now."""
        return 0 if self.num_open and refill == "all" else min(self.num_left, max_in_flight - self.num_open)

    @property
    def is_done(self) -> bool:
        return not self.num_left and not self.num_open

    def grow(self, draft: D, *, fork: Fork, why: tuple[Option, ...] = ()) -> Grow:
        """The command that grows one more answer, which is numbered here."""
        draft.number = len(self.tips)
        self.num_open += 1
        self.num_left -= 1
        self.tips.append(NONE)
        self.scores.append(None)
        actions = self.config.first_actions if draft.parent == START else self.config.actions
        return Grow(self.tips[draft.parent], action=actions[draft.way], fork=fork, why=why)

    def ask(self, drafts: Sequence[D], grows: Sequence[Grow]) -> Sequence[Command]:
        """The growths of new drafts, behind the judgements that wait."""
        if not (drafts or self._unjudged):
            return []
        judged, self._unjudged = self._unjudged, []
        judges = [Judge((draft.tip,), self.config.judge) for draft in judged]
        return self._in_flight.book([*judges, *grows], [*judged, *drafts])

    def tell(self, tree: Tree, outcome: Outcome) -> D | None:
        """Learn an outcome; returns the draft it ends, None where that is still to be judged."""
        draft = self._in_flight.take(outcome)
        if isinstance(outcome, Grown):
            draft.tip = self.tips[draft.number] = outcome.tip
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
        if self.is_done:
            return Phase("collection")
        return Phase("expansion" if len(self.tips) > 1 else "build")

    def candidates(self) -> list[Candidate]:
        """Every answer in the order asked; one without a score only where the vote needs none."""
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
