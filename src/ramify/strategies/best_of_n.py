"""Best of n: sample whole answers independently, judge each when it ends, then vote.

`vote` combines them into one answer: `best` is best-of-n, `majority` is self-consistency (arXiv 2203.11171), `weighted`
weighs each vote by the judge's score, `first` returns the first chain and uses the others only for coverage. An answer
whose judgement failed has no vote where votes need scores. Draws nothing.

Source: huggingface/search-and-learn sal/search/best_of_n.py, sal/utils/math.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ramify.core.command import Candidate, Command, Fork, Grow, Grown, Judge, Outcome
from ramify.core.errors import ConfigError
from ramify.core.strategy import Phase, Vote
from ramify.core.tree import ROOT, Tree
from ramify.strategies.parts.draws import Draws
from ramify.strategies.parts.flight import InFlight
from ramify.strategies.parts.spent import is_spent
from ramify.strategies.parts.steering import REWARD, Oracle, steering_value


@dataclass(frozen=True, slots=True)
class BestOfNConfig:
    """How many answers, which judge scores them and how they vote."""

    n: int = 16
    """Number of answers, as in search-and-learn's recipes."""
    judge: str = REWARD
    """Name of the run's judge whose scores are used in the vote."""
    vote: Vote = "best"
    oracle: Oracle = "refused"
    in_flight: int | None = None
    """Most answers that are grown or judged at once; None = all. A judge that samples needs a part of the budget: with
    few in flight, each answer is judged before the budget is spent on the next."""

    def __post_init__(self) -> None:
        for name in ("n", "in_flight"):
            number = getattr(self, name)
            if number is not None and number < 1:
                raise ConfigError(f"best_of_n: {name} = {number!r} must be at least 1")

    @property
    def planned_leaves(self) -> int:
        return self.n


class BestOfN:
    """Grow `n` answers, then judge those that were not judged when they ended."""

    Config = BestOfNConfig
    measures: frozenset[str] = frozenset()
    is_order_free = True
    post_hoc_reason = ""

    def __init__(self, config: BestOfNConfig, rng: Draws) -> None:
        self.config = config
        self.vote: Vote = config.vote
        self._in_flight: InFlight[int] = InFlight()
        """Number of the answer that each command belongs to."""
        self._tips: dict[int, int] = {}
        """Number of an answer -> its last node."""
        self._unjudged: list[int] = []
        self._fork = Fork(config.n, "answers")
        self._num_begun = 0
        self._num_wanted = config.n

    def ask(self, tree: Tree) -> Sequence[Command]:
        numbers, self._unjudged = self._unjudged, []
        judged = self._in_flight.book([Judge((self._tips[i],), self.config.judge) for i in numbers], numbers)
        room = (self.config.in_flight or self.config.n) - len(self._in_flight)
        begun = range(self._num_begun, min(self._num_begun + room, self._num_wanted))
        self._num_begun += len(begun)
        return [*judged, *self._in_flight.book([Grow(ROOT, fork=self._fork) for _ in begun], begun)]

    def tell(self, tree: Tree, outcome: Outcome) -> None:
        number = self._in_flight.take(outcome)
        if isinstance(outcome, Grown):
            self._num_wanted = 0 if is_spent(tree, outcome.tip) else self._num_wanted
            self._tips[number] = outcome.tip
            if self._is_to_judge(tree, outcome.tip):
                self._unjudged.append(number)

    def is_done(self, tree: Tree) -> bool:
        return self._num_begun >= self._num_wanted and not self._in_flight and not self._unjudged

    def phase(self, tree: Tree) -> Phase:
        if not self._num_begun:
            return Phase("build")
        num_ended = self._num_begun - len(self._in_flight) - len(self._unjudged)
        return Phase("collection" if self.is_done(tree) else "initial chains", num_ended, self.config.n)

    def candidates(self, tree: Tree) -> Sequence[Candidate]:
        """Every answer in the order asked. An answer without a score is included only where the vote needs no
        scores."""
        found: list[Candidate] = []
        for number in sorted(self._tips):
            value = self._value(tree, self._tips[number])
            if value is not None or not self._needs_scores:
                found.append(Candidate(self._tips[number], value or 0.0))
        return found

    @property
    def _needs_scores(self) -> bool:
        return self.config.vote in ("best", "weighted")

    def _is_to_judge(self, tree: Tree, tip: int) -> bool:
        return self._needs_scores and self.config.judge != REWARD and self._value(tree, tip) is None

    def _value(self, tree: Tree, tip: int) -> float | None:
        return steering_value(tree, tip, self.config.judge, oracle=self.config.oracle) if self._needs_scores else None
