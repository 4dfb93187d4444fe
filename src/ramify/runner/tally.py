"""Tally: the progress of a run in counts, for the progress bar and for processes that share a run."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from ramify.core.command import Judged, Score
from ramify.core.ledger import Spend
from ramify.core.limits import Limits
from ramify.core.prices import PICODOLLARS
from ramify.core.strategy import Phase
from ramify.core.tree import Step, Tree
from ramify.runner.driver import spend_of
from ramify.runner.events import Event, OutcomeTold, PhaseBegan, Resumed, StepGrown, TreeClosed, TreeOpened

UNITS: Final[Mapping[str, str]] = {
    "leaves": "leaves",
    "decode": "tokens",
    "prefill_uncached": "context tokens",
    "engine_calls": "requests",
    "tool_calls": "tool calls",
    "judge_calls": "judgements",
    "turns": "turns",
    "seconds": "s",
}
"""Limit -> its unit in words."""


@dataclass(frozen=True, slots=True)
class Bound:
    """How much of one of its limits a tree has used."""

    name: str
    """A counted limit, or `seconds`."""
    used: float
    limit: float

    @property
    def share(self) -> float:
        return self.used / self.limit


@dataclass(frozen=True, slots=True)
class Tally:
    """Counts of a run at one moment."""

    num_closed: int = 0
    part_done: float = 0.0
    """Sum of the finished shares of open trees: of their rounds, or of the limit that they have used most of."""
    before: float = 0.0
    """Part of `completed` that an earlier run had done."""
    num_leaves: int = 0
    num_tokens: int = 0
    """Sampled tokens."""
    num_tool_calls: int = 0
    phases: Mapping[str, int] = field(default_factory=dict[str, int])
    """Name of a phase -> number of open trees in it."""
    bound: Bound | None = None
    """Of a single open tree: the limit that it has used most of."""
    num_in_flight: int = 0
    """Requests of open trees that are not answered."""
    waited_s: float = 0.0
    """Seconds since the last answer, or since the first open tree was opened."""
    best: float | None = None
    """Of a single open tree: the best score so far of the judge that its strategy asks, else of its leaves' judge."""

    @property
    def completed(self) -> float:
        """Closed trees, plus the finished parts of open trees."""
        return self.num_closed + self.part_done

    @classmethod
    def total(cls, tallies: Iterable["Tally"]) -> "Tally":
        """The tallies of several processes as one."""
        every = list(tallies)
        is_open = [tally for tally in every if tally.phases]
        single = is_open[0] if len(is_open) == 1 else cls()
        return cls(
            num_closed=sum(tally.num_closed for tally in every),
            part_done=sum(tally.part_done for tally in every),
            before=sum(tally.before for tally in every),
            num_leaves=sum(tally.num_leaves for tally in every),
            num_tokens=sum(tally.num_tokens for tally in every),
            num_tool_calls=sum(tally.num_tool_calls for tally in every),
            phases=sum((Counter(tally.phases) for tally in every), Counter[str]()),
            bound=single.bound,
            num_in_flight=sum(tally.num_in_flight for tally in every),
            waited_s=min((tally.waited_s for tally in every if tally.num_in_flight), default=0.0),
            best=single.best,
        )


@dataclass(slots=True)
class CountedTree:
    """What is counted of a tree that grows."""

    tree: Tree
    limits: Limits
    begun: float
    """By the clock of the tally."""
    spent: Spend = field(default_factory=Spend)
    phase: Phase = field(default_factory=lambda: Phase("build"))
    judge: str | None = None
    """The judge that the strategy asked first."""
    best: dict[str, float] = field(default_factory=dict[str, float])
    """Judge -> its best score."""

    def score(self, scores: Iterable[Score]) -> None:
        for score in scores:
            if score.value is not None:
                self.best[score.judge] = max(score.value, self.best.get(score.judge, score.value))

    def bound(self, now: float) -> Bound | None:
        """The limit that it has used most of."""
        bounds = [Bound(name, getattr(self.spent, name), limit) for name, limit in self.limits.counted().items()]
        if self.limits.seconds is not None:
            bounds.append(Bound("seconds", now - self.begun, self.limits.seconds))
        return max(bounds, key=lambda bound: bound.share, default=None)

    def share(self, now: float) -> float:
        """The finished share, as far as rounds and limits tell."""
        rounds = self.phase.round / self.phase.num_rounds if self.phase.num_rounds else 0.0
        bound = self.bound(now)
        return min(1.0, max(rounds, 0.0 if bound is None else bound.share))

    @property
    def best_score(self) -> float | None:
        told = self.best if self.judge is None else {self.judge: self.best.get(self.judge)}
        return next(iter(told.values()), None)


class Tallying:
    """Counts a run's events. `observe` is an observer. `now` is a clock in seconds."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._open: dict[int, CountedTree] = {}
        self._before = 0.0
        self._num_leaves = self._num_tokens = self._num_tool_calls = self._num_closed = 0
        self._answered: float | None = None
        """When the last answer came, or the first open tree was opened."""

    def observe(self, event: Event) -> None:
        """Count one event of the run."""
        match event:
            case Resumed(num_closed):
                self._num_closed += num_closed
                self._before += num_closed
            case TreeOpened(index, tree, is_resumed, limits):
                self._num_leaves += tree.num_leaves
                begun = self._now()
                self._answered = self._answered if self._open else begun
                self._open[index] = CountedTree(tree, limits, begun)
                if is_resumed:
                    _count_tree(self._open[index], tree)
                    self._before += self._open[index].share(begun)
            case PhaseBegan(index, phase) if index in self._open:
                self._open[index].phase = phase
            case StepGrown(index, _, _, step):
                self._answered = self._now()
                for each in step.with_asides:
                    self._count_step(each, self._open.get(index))
            case OutcomeTold(index, told):
                self._answered = self._now()
                if isinstance(told.outcome, Judged) and index in self._open:
                    _count_judged(self._open[index], told.outcome)
            case TreeClosed(index):
                self._open.pop(index, None)
                self._num_closed += 1
            case _:
                pass

    def tally(self) -> Tally:
        """The counts so far."""
        now = self._now()
        single = next(iter(self._open.values())) if len(self._open) == 1 else None
        return Tally(
            num_closed=self._num_closed,
            part_done=sum(tree.share(now) for tree in self._open.values()),
            before=self._before,
            num_leaves=self._num_leaves,
            num_tokens=self._num_tokens,
            num_tool_calls=self._num_tool_calls,
            phases=Counter(rounds(tree.phase) if single else tree.phase.name for tree in self._open.values()),
            bound=None if single is None else single.bound(now),
            num_in_flight=sum(len(tree.tree.pending) for tree in self._open.values()),
            waited_s=0.0 if self._answered is None else now - self._answered,
            best=None if single is None else single.best_score,
        )

    def _count_step(self, step: Step, tree: CountedTree | None) -> None:
        self._num_leaves += step.stop is not None
        self._num_tokens += sum(segment.usage.num_billed for segment in step.segments)
        self._num_tool_calls += sum(segment.tool_call is not None for segment in step.segments)
        if tree is not None:
            tree.spent.add(spend_of(step))
            tree.score(score for score in step.scores if not score.is_of_step)


def _count_judged(tree: CountedTree, judged: Judged) -> None:
    tree.spent.judge_calls += len(judged.scores)
    tree.score(judged.scores)
    if judged.scores and tree.judge is None:
        tree.judge = judged.scores[0].judge


def _count_tree(counted: CountedTree, tree: Tree) -> None:
    """Count what a resumed tree has already."""
    for spend in tree.spent().values():
        counted.spent.add(spend)
    for node in tree.subtree():
        counted.score(score for score in tree.scores(node) if not score.is_of_step)


def rounds(phase: Phase) -> str:
    """`expansion 5 of 16`; without the total if it is not known, and the name alone before the first round."""
    of = f" of {phase.num_rounds}" if phase.num_rounds else ""
    return f"{phase.name} {phase.round}{of}" if phase.round or of else phase.name


def amount(bound: Bound) -> str:
    """`900 of 4000 tokens`."""
    if bound.name == "picodollars":
        return f"{bound.used / PICODOLLARS:.4g} of {bound.limit / PICODOLLARS:.4g} dollars"
    return f"{bound.used:.0f} of {bound.limit:.0f} {UNITS[bound.name]}"
