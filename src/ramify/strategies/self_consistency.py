"""Self-consistency that stops early: whole answers are sampled until their majority is settled.

`window` is early-stopping self-consistency (ESC, arXiv 2401.10480): answers come in windows, and a window whose answers
are all the same ends the sampling. `beta` is Adaptive-Consistency (arXiv 2305.11860; its code:
Pranjal2041/AdaptiveConsistency, stopping_criterias.py): after each answer, the sampling ends if the most frequent
answer is, with enough confidence, more likely than the second. Either way the majority of all answers is taken, and at
most `n` are sampled. A judge says which answers are the same; an answer that cannot be read counts as sampled and
settles nothing. Draws nothing.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from ramify.core.command import Candidate, Command, Fork, Grow, Grown, Judge, Judged, Outcome
from ramify.core.errors import ConfigError
from ramify.core.strategy import Phase, Vote
from ramify.core.tree import ROOT, Tree
from ramify.strategies.parts.draws import Draws
from ramify.strategies.parts.flight import InFlight

UNREAD: Final = -1
"""The class of an answer that could not be read."""


@dataclass(frozen=True, slots=True)
class SelfConsistencyConfig:
    """When the sampling ends."""

    n: int = 40
    """Most answers; both papers sample at most 40."""
    stop: Literal["window", "beta"] = "beta"
    """What ends the sampling: a window whose answers are all the same (ESC), or a majority that is settled with enough
    confidence (Adaptive-Consistency)."""
    window: int = 5
    """Answers of a window (ESC)."""
    confidence: float = 0.95
    """Confidence that ends the sampling (Adaptive-Consistency)."""
    in_flight: int = 1
    """Answers that are sampled at once where `stop` is `beta`. Those in flight when it ends are used too. The paper
    samples one by one."""
    judge: str = "agreement"
    """Name of the run's judge that says which answers are the same."""

    def __post_init__(self) -> None:
        for name in ("n", "in_flight"):
            if getattr(self, name) < 1:
                raise ConfigError(f"self_consistency: {name} = {getattr(self, name)!r} must be at least 1")
        if self.window < 2:
            raise ConfigError(f"self_consistency: window = {self.window!r}: one answer agrees with itself; at least 2")
        if not 0.5 <= self.confidence < 1:
            raise ConfigError(f"self_consistency: confidence = {self.confidence!r} must be from 0.5 to below 1")

    @property
    def planned_leaves(self) -> int:
        return self.n


class SelfConsistency:
    """Sample answers, compare each with the earlier ones, and stop when the majority is settled."""

    Config = SelfConsistencyConfig
    measures: frozenset[str] = frozenset()
    is_order_free = False
    vote: Vote = "majority"

    def __init__(self, config: SelfConsistencyConfig, rng: Draws) -> None:
        self.config = config
        self.post_hoc_reason = "how many answers there are depends on what they say"
        self._in_flight: InFlight[int] = InFlight()
        """Number of the answer that each command belongs to."""
        self._num_begun = 0
        self._tips: dict[int, int] = {}
        """Number of an answer -> its last node."""
        self._unjudged: list[int] = []
        self._judging: int | None = None
        """The answer that is being compared. The next waits, because it may be of the same new class."""
        self._firsts: list[int] = []
        """Of each class, its first answer."""
        self._classes: dict[int, int] = {}
        """Number of an answer -> its class, or `UNREAD`."""

    def ask(self, tree: Tree) -> Sequence[Command]:
        judged: Sequence[Command] = []
        if self._unjudged and self._judging is None:
            self._judging = self._unjudged.pop(0)
            nodes = tuple(self._tips[one] for one in (*self._firsts, self._judging))
            judged = self._in_flight.book([Judge(nodes, self.config.judge)], [self._judging])
        begun = range(self._num_begun, self._num_begun + self._room())
        self._num_begun += len(begun)
        fork = Fork(len(begun), "answers") if begun else None
        return [*judged, *self._in_flight.book([Grow(ROOT, fork=fork) for _ in begun], begun)]

    def tell(self, tree: Tree, outcome: Outcome) -> None:
        number = self._in_flight.take(outcome)
        if number == self._judging:
            self._judging = None
        if isinstance(outcome, Grown):
            self._tips[number] = outcome.tip
            self._unjudged.append(number)
        elif isinstance(outcome, Judged):
            self._classes[number] = self._class_of(number, outcome.scores[-1].value)
        else:
            self._classes[number] = UNREAD

    def is_done(self, tree: Tree) -> bool:
        is_idle = not self._in_flight and not self._unjudged
        return is_idle and (self._num_begun >= self.config.n or self._is_settled)

    def phase(self, tree: Tree) -> Phase:
        if not self._num_begun:
            return Phase("build")
        return Phase("collection" if self.is_done(tree) else "initial chains")

    def candidates(self, tree: Tree) -> Sequence[Candidate]:
        """Every answer in the order asked."""
        return [Candidate(self._tips[number], 0.0) for number in sorted(self._tips)]

    @property
    def _is_settled(self) -> bool:
        if self.config.stop == "window":
            return is_unanimous(self._classes, self.config.window)
        counts = Counter(kind for kind in self._classes.values() if kind != UNREAD)
        first, second, *_ = [*(count for _, count in counts.most_common(2)), 0, 0]
        return leads(first, second) >= self.config.confidence

    def _room(self) -> int:
        """How many answers to begin now."""
        left = self.config.n - self._num_begun
        if self._is_settled or self._unjudged or self._judging is not None:
            return 0
        if self.config.stop == "window":
            return 0 if self._in_flight else min(self.config.window, left)
        return max(0, min(self.config.in_flight - len(self._in_flight), left))

    def _class_of(self, number: int, value: float | None) -> int:
        """The class of an answer by its judge's value: its place among the first answers, or one of its own."""
        if value is None:
            return UNREAD
        if value.is_integer() and 0 <= value < len(self._firsts):
            return int(value)
        self._firsts.append(number)
        return len(self._firsts) - 1


def is_unanimous(classes: dict[int, int], window: int) -> bool:
    """Whether the answers of the last whole window are all the same, and can be read.

    `classes` maps the numbers of answers, from 0, to their classes.
    """
    end = len(classes) // window * window
    last = {classes[number] for number in range(end - window, end)} if end else set[int]()
    return len(last) == 1 and UNREAD not in last


def leads(first: int, second: int) -> float:
    """Probability that the most frequent answer, seen `first` times, is more likely than the second, seen `second`
    times: the mass above 1/2 of Beta(first + 1, second + 1). 0 before anything was seen."""
    if not first:
        return 0.0
    total = first + second + 1
    return sum(math.comb(total, k) for k in range(second + 1, total + 1)) / 2**total
