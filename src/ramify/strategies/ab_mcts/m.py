"""AB-MCTS-M: walks like AB-MCTS-A, but uses one model of all scores below a node instead of one posterior for each
choice.

At every node of a walk, each answer derived there is a group; the members of a group are the scores of this answer and
of everything below it. A hierarchy is fitted to the groups (`hierarchy.py`: the published model, summed over a grid
instead of sampled). For each group the walk draws the next score; for deriving another answer here it draws the score
of a new group. The largest draw wins. If there is no answer below yet, one is derived. An answer below which most
scores are equal is not entered any more; the next best answer is entered instead. If all answers are like this or full,
another answer is derived here.

With several ways of answering, the way is chosen by a hierarchy over all scores of the tree with the ways as groups, or
by an upper bound. With `stack` there is one model for each way at each node, fitted to the scores of that way only.
Answers in flight count as in `a.py`: a group gets one more score equal to its mean for each answer in flight below it.

Draws at ask, for every node of a walk: a uniform and a normal for each answer in the order scored, then for a new
answer (with `stack`, this is repeated for each way; three normals for a way without scores). Then, if several ways
compete for a new answer, the same for each way, or one integer while the tree has no score.

Source: SakanaAI/treequest src/treequest/algos/ab_mcts_m/{algo,pymc_interface}.py (arXiv 2503.04412).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from ramify.core.command import Command, Fork, Grow, Option, Outcome
from ramify.core.errors import ConfigError
from ramify.core.tree import Tree
from ramify.strategies.ab_mcts.a import EXPLORATION, SHOWN, ModelSelection, Pending, check_adaptive, sibling_cap
from ramify.strategies.ab_mcts.hierarchy import Hierarchy, ScoreGroup, draw_prior, fitted
from ramify.strategies.parts.drafts import START, Draft, DraftsConfig, DraftSearch, Refill
from ramify.strategies.parts.posteriors import RunningMean, Variates, ucb1

Overlap = Literal["largest", "last"]
"""Which draw an answer gets if several ways have scores below it (`stack`): the largest, or the last (published)."""
NEUTRAL: Final = 0.5
"""Prior mean if none is given."""
GEN: Final = -1
"""Used instead of an answer's number: derive another answer here."""


@dataclass(frozen=True, slots=True)
class ABMCTSMConfig(DraftsConfig):
    """Defaults are treequest's, except for what is in flight and for `overlap`."""

    model_selection: ModelSelection = "multiarm_bandit_thompson"
    reward_average_priors: tuple[float, ...] = ()
    """Prior mean of all scores, or one for each way (`stack` only)."""
    prune_size: int = 4
    """Number of scores below an answer from which on it may be left out."""
    prune_share: float | None = 0.75
    """An answer is left out if this fraction of its scores is equal after rounding to 1/100; None = never."""
    overlap: Overlap = "largest"
    max_in_flight: int = 4
    """Most answers grown or judged at once."""
    in_flight: Pending = "pessimistic"
    """How a choice counts answers in flight: each as one more score equal to the mean of the choice (`pessimistic`), or
    not at all (`none`, published)."""
    refill: Refill = "each"

    def __post_init__(self) -> None:
        DraftsConfig.__post_init__(self)
        check_adaptive(self.reward_average_priors, len(self.first_actions), max_in_flight=self.max_in_flight)
        if not all(map(math.isfinite, self.reward_average_priors)):
            raise ConfigError(f"reward_average_priors = {self.reward_average_priors!r} must be finite")
        if self.prune_size < 1 or not (self.prune_share is None or 0 < self.prune_share <= 1):
            raise ConfigError(
                f"prune_size = {self.prune_size!r} must be at least 1, prune_share = {self.prune_share!r} above 0 and "
                "at most 1"
            )

    def prior_mean(self, model: int) -> float:
        """Prior mean of the scores of one model: of all ways, or of one way (`stack`)."""
        means = self.reward_average_priors
        if len(means) == 1:
            return means[0]
        return means[model] if means and self.model_selection == "stack" else NEUTRAL


AS_PUBLISHED: Final = ABMCTSMConfig(overlap="last", max_in_flight=1, in_flight="none", refill="all")


@dataclass(slots=True, eq=False)
class RepeatCounts:
    """How often each score, rounded to 1/100, occurred."""

    counts: dict[int, int] = field(default_factory=dict[int, int])
    total: int = 0
    most: int = 0

    def observe(self, score: float) -> None:
        key = round(score * 100)
        self.counts[key] = self.counts.get(key, 0) + 1
        self.most = max(self.most, self.counts[key])
        self.total += 1

    def is_prunable(self, min_size: int, share: float) -> bool:
        """Whether there are enough scores and the most frequent one makes up at least `share` of them."""
        return self.total >= min_size and self.most / self.total >= share


@dataclass(slots=True, eq=False)
class _Place:
    """The state of the search at one answer and below. The lists have one entry for each model: one in total, or one
    for each way."""

    parent: int
    way: int
    depth: int
    seen: list[RunningMean]
    """Its own score and all scores below it."""
    pending: list[int]
    repeats: RepeatCounts = field(default_factory=RepeatCounts)
    gens: int = 0
    """Answers in flight that are derived directly from this one."""
    children: list[int] = field(default_factory=list[int])
    fits: list[Hierarchy | None] = field(default_factory=list[Hierarchy | None])
    """Hierarchies fitted to what is below; empty = to be fitted."""


class ABMCTSM(DraftSearch[Draft]):
    """Walk down by draws from one model at each node; derive one answer where the walk ends."""

    Config = ABMCTSMConfig

    def __init__(self, config: ABMCTSMConfig, rng: Variates) -> None:
        super().__init__(config)
        self.config = config
        self.is_order_free = config.max_in_flight == 1
        self._rng = rng
        self._is_stack = config.model_selection == "stack"
        num_ways = len(config.first_actions)
        self._num_models = num_ways if self._is_stack else 1
        self._places = {START: self._place(START, 0, 0)}
        self._ways = [RunningMean() for _ in range(num_ways)]
        self._way_pending = [0] * num_ways
        self._cap = sibling_cap(config.in_flight, config.max_in_flight)

    def ask(self, tree: Tree) -> Sequence[Command]:
        drafts: list[Draft] = []
        grows: list[Grow] = []
        for _ in range(self._drafts.room(self.config.max_in_flight, self.config.refill)):
            why: list[Option] = []
            draft = self._walk(why)
            if draft is None:
                break
            self._reserve(draft, 1)
            fork = Fork(1, "gen", score=why[-1].score if why else None)
            grows.append(self._drafts.grow(draft, fork=fork, why=tuple(why[-SHOWN:])))
            drafts.append(draft)
        return self._drafts.ask(drafts, grows)

    def tell(self, tree: Tree, outcome: Outcome) -> None:
        draft = self._drafts.tell(tree, outcome)
        if draft is None:
            return
        self._reserve(draft, -1)
        if draft.score is not None:
            self._learn(draft, draft.score)

    def _walk(self, why: list[Option]) -> Draft | None:
        """Walk from the bare prompt to where an answer is derived; None = too much is in flight on the way."""
        number = START
        while True:
            place = self._places[number]
            drawn = self._stacked(place) if self._is_stack else self._drawn(place)
            best, way = self._best(place, drawn)
            if best is None:
                return None
            if drawn:
                why.append(Option(self._drafts.tips[number if best == GEN else best], drawn[best, way]))
            if best == GEN:
                return Draft(number, way if self._is_stack else self._best_way())
            number = best

    def _drawn(self, place: _Place) -> dict[tuple[int, int], float]:
        """A draw for each choice at a node, by its number and way; empty if a new answer is the only choice."""
        if not place.children:
            return {}
        groups = self._groups(place, 0)
        fit = self._fit(place, 0, list(groups.values()))
        drawn = {(number, 0): fit.draw_group(group, self._rng) for number, group in groups.items()}
        return drawn | {(GEN, 0): fit.draw_new(self._rng)}

    def _stacked(self, place: _Place) -> dict[tuple[int, int], float]:
        """The same as `_drawn` if each way has its own model; each answer occurs once."""
        drawn: dict[tuple[int, int], float] = {}
        for way in range(self._num_models):
            groups = self._groups(place, way)
            fit = self._fit(place, way, list(groups.values())) if groups else None
            for number, group in groups.items():
                assert fit is not None
                value = fit.draw_group(group, self._rng)
                is_larger = value > drawn.get((number, 0), -math.inf)
                if is_larger or self.config.overlap == "last":
                    drawn[number, 0] = value
            drawn[GEN, way] = (
                draw_prior(self.config.prior_mean(way), self._rng) if fit is None else fit.draw_new(self._rng)
            )
        return drawn

    def _best(self, place: _Place, drawn: dict[tuple[int, int], float]) -> tuple[int | None, int]:
        """The allowed choice with the largest draw, and its way; None = no choice is allowed."""
        is_full = place.gens >= self._cap
        ranked = sorted(drawn, key=drawn.__getitem__, reverse=True)
        if not self._is_stack and ranked and ranked[0][0] != GEN:
            ranked.sort(key=lambda choice: choice[0] == GEN)
        for number, way in ranked:
            if not (is_full if number == GEN else self._is_left_out(number)):
                return number, way
        return (GEN, 0) if not ranked and not is_full else (None, 0)

    def _is_left_out(self, number: int) -> bool:
        place, share = self._places[number], self.config.prune_share
        is_pruned = share is not None and place.repeats.is_prunable(self.config.prune_size, share)
        return is_pruned or sum(place.pending) >= self._cap

    def _best_way(self) -> int:
        """The way of answering that the bandit over the whole tree tries next; no draw if there is only one way."""
        counts = [seen.count + pending for seen, pending in zip(self._ways, self._way_pending, strict=True)]
        if len(self._ways) == 1:
            return 0
        if self.config.model_selection == "multiarm_bandit_ucb":
            rows = zip(self._ways, counts, strict=True)
            return _first_largest([ucb1(s.mean, n, sum(counts), exploration=EXPLORATION) for s, n in rows])
        rows = zip(self._ways, self._way_pending, strict=True)
        groups = [ScoreGroup.of(seen, pending=pending) if seen.count else None for seen, pending in rows]
        known = [group for group in groups if group is not None]
        if not known:
            return int(self._rng.integers(len(self._ways)))
        fit = fitted(known, mean=NEUTRAL)
        return _first_largest([fit.draw_group(g, self._rng) if g else fit.draw_new(self._rng) for g in groups])

    def _groups(self, place: _Place, model: int) -> dict[int, ScoreGroup]:
        """The scores below each answer derived here that the model uses, by number."""
        children = ((number, self._places[number]) for number in place.children)
        return {
            number: ScoreGroup.of(child.seen[model], pending=child.pending[model])
            for number, child in children
            if child.seen[model].count
        }

    def _fit(self, place: _Place, model: int, groups: Sequence[ScoreGroup]) -> Hierarchy:
        if not place.fits:
            place.fits = [None] * self._num_models
        fit = place.fits[model]
        if fit is None:
            fit = place.fits[model] = fitted(groups, mean=self.config.prior_mean(model))
        return fit

    def _place(self, parent: int, way: int, depth: int) -> _Place:
        models = range(self._num_models)
        return _Place(parent, way, depth, [RunningMean() for _ in models], [0 for _ in models])

    def _reserve(self, draft: Draft, number: int) -> None:
        """Add an answer in flight to everything above it, or (-1) remove it."""
        if self.config.in_flight == "none":
            return
        self._way_pending[draft.way] += number
        self._places[draft.parent].gens += number
        for place in self._above(draft):
            place.pending[draft.way if self._is_stack else 0] += number

    def _learn(self, draft: Draft, score: float) -> None:
        """Every model above learns the score; from now on the answer may be entered."""
        self._ways[draft.way].observe(score)
        above = self._places[draft.parent]
        own = self._place(draft.parent, draft.way, above.depth + 1)
        for place in (*self._above(draft), own):
            place.seen[draft.way if self._is_stack else 0].observe(score)
            place.repeats.observe(score)
        if self.config.actions:
            self._places[draft.number] = own
            above.children.append(draft.number)

    def _above(self, draft: Draft) -> list[_Place]:
        """The places from the parent up to the bare prompt. Discards their fits, which are now out of date."""
        found: list[_Place] = []
        number = draft.parent
        while True:
            place = self._places[number]
            place.fits = []
            found.append(place)
            if not place.depth:
                return found
            number = place.parent


def _first_largest(values: Sequence[float]) -> int:
    return values.index(max(values))
