"""MCTSr's tree of answers: the value and visits of each answer, and which answer is refined next.

Answers are numbered in the order of their first judgement. An answer that was never judged is in the tree only if it is
a root. Answers are ordered breadth first, or as they came; this order decides ties.

Cost: a rollout counts its visit on every answer of its path, and updates q upward until it does not change. Choosing
the best answer looks at only a few: a heap stores for every open answer an upper bound of its score, so only a score
that may rise above its bound must be updated at once. A visit lowers the bonus of the answers on the path and raises
the bonus of their siblings. The siblings' bounds hold until their parent has an eighth more visits. Drawing an answer
scans all of them, in arrays.
"""

import math
from bisect import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush, nlargest
from typing import Final

import numpy as np
import numpy.typing as npt

from ramify.core.tree import NONE
from ramify.strategies.mctsr.config import MCTSrConfig
from ramify.strategies.mctsr.scores import (
    Scores,
    halfway,
    importance_weights,
    is_distribution,
    pairwise_weights,
    penalised,
    published_choice,
    published_pair,
    q_of,
    rescored,
    uct,
)
from ramify.strategies.parts.draws import Draws
from ramify.strategies.parts.ucb import inverse_cdf

ROOT_CONSTANT: Final = 10_000.0
"""The score of a root in mcts-llm."""
Order = tuple[int, tuple[int, ...], int]
"""Depth, path of the answer, number: sorts breadth first. Where answers are ordered as they came, depth and path are
those of a root."""
Entry = tuple[float, int, tuple[int, ...], int]
"""Minus a score or its bound, then the order."""


@dataclass(slots=True, eq=False)
class MCTSrAnswer:
    """One answer. Only its tree mutates it."""

    number: int
    node: int
    """Node of the tree where it ends."""
    parent: int
    """Number of the answer it refines; -1 = none."""
    depth: int
    way: tuple[int, ...]
    """For every answer on its path that is not a first child: minus the depth, and the index among its siblings."""
    samples: list[float] = field(default_factory=list[float])
    """Its judgements, after penalties."""
    lowest: float = math.inf
    total: float = 0.0
    own_q: float = 0.0
    """q of its own samples only; 0 without any."""
    q: float = 0.0
    children: list[int] = field(default_factory=list[int])
    best_child: float = -math.inf
    """Highest q of its children."""
    num_refining: int = 0
    """Rollouts in flight that refine it."""
    bound: float | None = None
    """Upper bound of its score, and its key in the heap; None = it is not in the heap."""


class AnswerTree:
    """The answers of a search. Mutated by `add`, `learn`, `reserve`, `release`, `back_up` and `count_failure`."""

    def __init__(self, config: MCTSrConfig) -> None:
        self.config = config
        self.answers: list[MCTSrAnswer] = []
        self.visits: list[int] = []
        """By number of the answer, like the next two:"""
        self._parents: list[int] = []
        self._limits: list[float] = []
        """Visits of an answer up to which its children's bounds hold; infinite for an only child, whose score does not
        rise with them."""
        self._roots: list[int] = []
        self._order: list[Order] = []
        self._heap: list[Entry] = []
        self._scored: dict[int, float] = {}
        """MathBlackBox's scores, by number."""
        self._scores = np.empty(64)
        """By number, with room for more: current scores of the open answers, NaN for others; used where answers are
        drawn."""
        self._numbers = np.empty(64, np.intp)
        """Numbers in the order of `_order`, with as much room."""
        self._is_greedy = config.selection == "greedy"

    def __len__(self) -> int:
        return len(self.answers)

    # -- learning ---------------------------------------------------------------------------------------------------

    def add(self, node: int, parent: int, value: float | None) -> MCTSrAnswer:
        """Add a new answer with its first judgement; only a root may have none."""
        above = self.answers[parent] if parent != NONE else None
        siblings, depth, way = (above.children, above.depth + 1, above.way) if above else (self._roots, 0, ())
        if self.config.published.ties == "created":
            depth = 0
        elif siblings:
            way = (*way, -depth, len(siblings))
        answer = MCTSrAnswer(len(self.answers), node, parent, depth, way)
        self.answers.append(answer)
        self.visits.append(0)
        self._parents.append(parent)
        self._limits.append(math.inf)
        if above is not None and siblings:
            self._limits[parent] = 0
        siblings.append(answer.number)
        self._insert(answer)
        if value is None:
            self._touch(answer)
        else:
            self.learn(answer, value)
        if above is None and self.config.published.q_memory == "leaves":
            self._rescore()
        return answer

    def learn(self, answer: MCTSrAnswer, value: float) -> None:
        """Record one more judgement of an answer."""
        config = self.config
        sample = penalised(value, config.penalty, limit=config.reward_limit, excess=config.excess_penalty)
        answer.samples.append(sample)
        answer.lowest, answer.total = min(answer.lowest, sample), answer.total + sample
        answer.own_q = q_of(answer.lowest, answer.total, len(answer.samples))
        is_first = config.published.leaf_visits == "judged" and len(answer.samples) == 1
        self.visits[answer.number] += config.published.leaf_visits == "judgements" or is_first
        if config.published.leaf_visits == "judgements":
            self._touch_all(answer.children)
        if config.published.q_memory == "own_q":
            self._follow_up(answer)
            return
        answer.q = answer.own_q
        self._touch(answer)
        above = self._above(answer)
        if above is not None:
            self._look_down(above)
            self._touch(above)

    def back_up(self, answer: MCTSrAnswer) -> None:
        """Finish a rollout from `answer`: update the visits, and the published q, of all answers from it to its
        root."""
        if self.config.published.q_memory == "assigned":
            for current in self._path(answer):
                if current.children:
                    self._look_down(current)
                    current.q = halfway(current.q, current.best_child)
        self._visit(answer)
        if self.config.published.q_memory == "assigned":
            for current in self._path(answer):
                self._touch(current)
        if self.config.published.q_memory == "leaves":
            self._rescore()

    def count_failure(self, answer: MCTSrAnswer) -> None:
        """Count a visit for a failed rollout from `answer`; otherwise it might be chosen forever."""
        self._visit(answer)

    def reserve(self, answer: MCTSrAnswer) -> None:
        """Count a rollout from `answer` that begins."""
        answer.num_refining += 1
        self._touch(answer)

    def release(self, answer: MCTSrAnswer) -> None:
        """Stop counting a rollout from `answer` that ended or failed."""
        answer.num_refining -= 1
        self._touch(answer)

    # -- choosing ---------------------------------------------------------------------------------------------------

    def open_answers(self) -> list[MCTSrAnswer]:
        """Answers that may be refined now, breadth first. O(n)."""
        return [self.answers[number] for _, _, number in self._order if self._is_open(self.answers[number])]

    def breadth_first(self) -> list[MCTSrAnswer]:
        return [self.answers[number] for _, _, number in self._order]

    def choose(self, rng: Draws, *, shown: int) -> list[tuple[MCTSrAnswer, float]]:
        """The answer to refine next with its score (one draw unless greedy), then up to `shown - 1` others with the
        highest scores. Empty if the published rule has no distribution."""
        best = self._best() if self._is_greedy else None
        if best is not None:
            near = {entry[3] for entry in self._heap[: 2 * shown]} - {best.number}
            others = [(self.score(a), -a.number, a) for number in near if self._is_open(a := self.answers[number])]
            return [(best, self.score(best)), *((a, score) for score, _, a in nlargest(shown - 1, others))]
        numbers, scores = self.candidates()
        index = int(scores.argmax()) if self._is_greedy else self._drawn(scores, rng)
        if index is None:
            return []
        order = [index, *[i for i in _largest(scores, shown) if i != index][: shown - 1]]
        return [(self.answers[numbers[i]], float(scores[i])) for i in order]

    def candidates(self) -> tuple[npt.NDArray[np.intp], Scores]:
        """Numbers and scores of the answers to choose from, breadth first: the open ones, or, if there are none, those
        of `all_expanded`."""
        if not self._is_greedy:
            numbers = self._numbers[: len(self)]
            scores = self._scores[numbers]
            is_open = ~np.isnan(scores)
            if is_open.any():
                return numbers[is_open], scores[is_open]
        answers = self.open_answers() or self._when_all_are_expanded()
        numbers = np.array([answer.number for answer in answers], np.intp)
        return numbers, np.array([self.score(answer) for answer in answers])

    def has_open(self) -> bool:
        """Whether an answer may be refined now. O(log n); for draws O(n)."""
        if self._is_greedy:
            return self._best() is not None
        return not np.isnan(self._scores[: len(self)]).all()

    def _drawn(self, scores: Scores, rng: Draws) -> int | None:
        """The index of the answer drawn; None = the published rule has no distribution."""
        is_pairwise, published = self.config.selection == "pairwise", self.config.published
        u = float(rng.random())
        if is_pairwise and published.pairwise_single == "ends":
            return published_pair(scores.tolist(), u)
        if not is_pairwise and published.importance_weights == "kept":
            return published_choice(scores.tolist(), u)
        weights = pairwise_weights(scores) if is_pairwise else importance_weights(scores, published.importance_weights)
        return inverse_cdf(weights if is_distribution(weights) else np.ones(len(weights)), u)

    def _when_all_are_expanded(self) -> list[MCTSrAnswer]:
        return (
            [self.answers[n] for n in self._roots]
            if self.config.published.all_expanded == "root"
            else self.breadth_first()
        )

    def _best(self) -> MCTSrAnswer | None:
        """The open answer with the highest score. Searches the heap as long as a bound reaches the best score found."""
        heap, seen, best = self._heap, list[Entry](), None
        while heap and (best is None or heap[0] < best):
            bound, depth, way, number = heappop(heap)
            answer = self.answers[number]
            if answer.bound != -bound:
                continue
            answer.bound = self._bound(answer) if self._is_open(answer) else None
            if answer.bound is not None:
                seen.append((-answer.bound, depth, way, number))
                entry = (-self.score(answer), depth, way, number)
                best = entry if best is None else min(best, entry)
        for entry in seen:
            heappush(heap, entry)
        return None if best is None else self.answers[best[3]]

    # -- keeping in order -------------------------------------------------------------------------------------------

    def _insert(self, answer: MCTSrAnswer) -> None:
        """Put the newest answer in its place of the order."""
        num = len(self._order)
        if num == len(self._numbers):
            self._numbers, self._scores = np.resize(self._numbers, 2 * num), np.resize(self._scores, 2 * num)
        place = (answer.depth, answer.way, answer.number)
        index = bisect(self._order, place)
        self._order.insert(index, place)
        self._numbers[index + 1 : num + 1] = self._numbers[index:num]
        self._numbers[index] = answer.number
        self._scores[answer.number] = math.nan

    def _above(self, answer: MCTSrAnswer) -> MCTSrAnswer | None:
        return self.answers[answer.parent] if answer.parent != NONE else None

    def _look_down(self, answer: MCTSrAnswer) -> None:
        answer.best_child = max([self.answers[child].q for child in answer.children])

    def _follow_up(self, answer: MCTSrAnswer) -> None:
        """Recompute q from own_q, from here upward until it does not change."""
        current: MCTSrAnswer | None = answer
        while current is not None:
            before = current.q, current.best_child
            if current.children:
                self._look_down(current)
            current.q = halfway(current.own_q, current.best_child) if current.children else current.own_q
            self._touch(current)
            if current is not answer and before == (current.q, current.best_child):
                return
            current = self._above(current)

    def _is_open(self, answer: MCTSrAnswer) -> bool:
        """Whether it may have another child; children in flight count."""
        is_full = len(answer.children) + answer.num_refining >= self.config.max_children
        if self.config.published.expanded == "either":
            return not is_full and answer.best_child <= answer.q
        return not is_full or answer.best_child < answer.own_q

    def score(self, answer: MCTSrAnswer) -> float:
        """Its current upper confidence bound."""
        return self._score(answer, self.visits[answer.number if answer.parent == NONE else answer.parent])

    def _bound(self, answer: MCTSrAnswer) -> float:
        """Upper bound of the score, valid until the parent's visits exceed its limit."""
        if answer.parent == NONE:
            return self.score(answer)
        visits, limit = self.visits[answer.parent], self._limits[answer.parent]
        return self._score(answer, int(limit) if visits < limit < math.inf else visits)

    def _score(self, answer: MCTSrAnswer, parent_visits: int) -> float:
        config = self.config
        if config.published.q_memory == "leaves":
            return self._scored.get(answer.number, 0.0)
        if answer.parent == NONE and config.published.root_score != "own_visits":
            if config.published.root_score == "constant":
                return ROOT_CONSTANT
            parent_visits = 0
        return uct(
            answer.q / config.scale,
            self.visits[answer.number],
            parent_visits,
            exploration=config.exploration,
            eps=config.eps,
            log_form=config.published.log_form,
        )

    def _path(self, answer: MCTSrAnswer) -> Iterator[MCTSrAnswer]:
        """From this answer up to its root."""
        current = answer
        while current.parent != NONE:
            yield current
            current = self.answers[current.parent]
        yield current

    def _visit(self, answer: MCTSrAnswer) -> None:
        """Count a visit from here up to the root; the scores of siblings on the path may rise."""
        if self.config.published.leaf_visits == "judgements":
            return
        visits, parents, limits, number, root = self.visits, self._parents, self._limits, answer.number, NONE
        while number != NONE:
            visits[number] += 1
            if visits[number] > limits[number]:
                self._raise_limit(number)
            elif not self._is_greedy:
                self._touch_all(self.answers[number].children)
            root, number = number, parents[number]
        self._touch_all([root, *answer.children])

    def _raise_limit(self, number: int) -> None:
        self._limits[number] = self.visits[number] + self.visits[number] // 8
        self._touch_all(self.answers[number].children)

    def _touch_all(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            self._touch(self.answers[number])

    def _touch(self, answer: MCTSrAnswer) -> None:
        """Update after a change that may raise an answer's score or open it; where answers are drawn, after any
        change."""
        is_open = self._is_open(answer)
        if not self._is_greedy:
            self._scores[answer.number] = self.score(answer) if is_open else math.nan
        if not self._is_greedy or not is_open:
            return
        bound = self._bound(answer)
        if answer.bound is None or answer.bound < bound:
            answer.bound = bound
            heappush(self._heap, (-bound, answer.depth, answer.way, answer.number))
            if len(self._heap) > 4 * len(self.answers) + 64:
                self._tidy()

    def _tidy(self) -> None:
        """Rebuild the heap with one entry for every open answer."""
        self._heap = []
        for answer in self.answers:
            answer.bound = self._bound(answer) if self._is_open(answer) else None
            if answer.bound is not None:
                self._heap.append((-answer.bound, answer.depth, answer.way, answer.number))
        heapify(self._heap)

    def _rescore(self) -> None:
        """Recompute MathBlackBox's scores after a round. O(n)."""
        judged = [answer for answer in self.answers if answer.samples]
        place = {answer.number: i for i, answer in enumerate(judged)}
        scores = rescored(
            [place.get(answer.parent) for answer in judged],
            [answer.own_q for answer in judged],
            [len(answer.samples) for answer in judged],
            {place[number]: score for number, score in self._scored.items()},
            exploration=self.config.exploration,
            eps=self.config.eps,
        )
        for i, score in scores.items():
            self._scored[judged[i].number] = score
            self._touch(judged[i])


def _largest(scores: Scores, number: int) -> list[int]:
    """Indices of the `number` highest scores, the highest first; of equal ones the first."""
    least = np.partition(scores, -number)[-number] if number < len(scores) else -math.inf
    near = np.flatnonzero(scores >= least)
    return near[np.argsort(-scores[near], kind="stable")][:number].tolist()
