"""Best-first: repeatedly derive several answers from the best answer that has no descendants yet.

The search starts at the bare prompt. Answers wait on a heap, ordered by score, then depth, then number: the highest
score first, then the shallower, then the one asked for first. The next answer is taken as soon as fewer than `pops` are
at work, so with k at work they are the k best known at that time. As published, one is at work, and all answers derived
from it are scored before the next one is taken. An answer that failed or got no score is never put on the heap. If the
heap is empty and nothing is in flight, the search starts again from the bare prompt. Draws nothing. With one answer at
work at a time, the tree does not depend on the order of outcomes.

Source: SakanaAI/treequest src/treequest/algos/best_first_search.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Final

from ramify.core.command import Command, Fork, Grow, Option, Outcome
from ramify.core.errors import ConfigError
from ramify.core.tree import Tree
from ramify.strategies.parts.drafts import START, Draft, DraftsConfig, DraftSearch
from ramify.strategies.parts.draws import Draws

SHOWN: Final = 3
"""Number of candidates of a decision shown in the viewer. The best 3 of a heap are among its first 7 entries."""
Waiting = tuple[float, int, int]
"""Minus the score, the depth and the number of an answer."""


@dataclass(frozen=True, slots=True)
class BestFirstConfig(DraftsConfig):
    """Defaults are treequest's."""

    num_samples: int = 2
    """Answers derived from one answer by each way of answering; the same number from the bare prompt."""
    pops: int = 1
    """Answers at work at once: answers from which others are currently being derived."""

    def __post_init__(self) -> None:
        DraftsConfig.__post_init__(self)
        if min(self.num_samples, self.pops) < 1:
            raise ConfigError(f"num_samples = {self.num_samples!r} and pops = {self.pops!r} must be at least 1")


AS_PUBLISHED: Final = BestFirstConfig()


class BestFirst(DraftSearch[Draft]):
    """Take the best waiting answer, derive others from it, and put the scored ones on the heap."""

    Config = BestFirstConfig

    def __init__(self, config: BestFirstConfig, rng: Draws) -> None:
        super().__init__(config)
        self.config = config
        self.is_order_free = config.pops == 1
        self._waiting: list[Waiting] = []
        self._depths = {START: 0}
        """Depth of every scored answer, by number."""
        self._at_work: dict[int, int] = {}
        """Number of an answer -> answers in flight that are derived from it."""

    def ask(self, tree: Tree) -> Sequence[Command]:
        drafts: list[Draft] = []
        grows: list[Grow] = []
        while len(self._at_work) < self.config.pops and self._drafts.num_left:
            why = self._best()
            number = self._pop()
            if number is None:
                break
            derived = self._derived(number)
            fork = Fork(len(derived), "best_first", score=self._drafts.scores[number])
            grows.append(self._drafts.grow(derived[0], fork=fork, why=why))
            grows += [self._drafts.grow(draft, fork=fork) for draft in derived[1:]]
            drafts += derived
        return self._drafts.ask(drafts, grows)

    def tell(self, tree: Tree, outcome: Outcome) -> None:
        draft = self._drafts.tell(tree, outcome)
        if draft is None:
            return
        self._at_work[draft.parent] -= 1
        if not self._at_work[draft.parent]:
            del self._at_work[draft.parent]
        if draft.score is not None:
            depth = self._depths[draft.number] = self._depths[draft.parent] + 1
            if self.config.actions:
                heappush(self._waiting, (-draft.score, depth, draft.number))

    def _derived(self, number: int) -> list[Draft]:
        """Drafts from one answer, way by way; fewer if fewer answers may still be asked for."""
        ways = range(len(self.config.first_actions))
        drafts = [Draft(number, way) for way in ways for _ in range(self.config.num_samples)]
        drafts = drafts[: self._drafts.num_left]
        self._at_work[number] = len(drafts)
        return drafts

    def _pop(self) -> int | None:
        """The best waiting answer; the bare prompt if nothing waits and nothing is in flight; None = wait."""
        if self._waiting:
            return heappop(self._waiting)[-1]
        return None if self._at_work else START

    def _best(self) -> tuple[Option, ...]:
        tips = self._drafts.tips
        best = sorted(self._waiting[: 2**SHOWN - 1])[:SHOWN]
        return tuple([Option(tips[number], -minus, (("depth", depth),)) for minus, depth, number in best])
