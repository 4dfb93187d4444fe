"""AB-MCTS-A: at every answer, draws decide whether to derive another answer from it or to descend to one derived
already.

Each node of the search has several posteriors: of the scores of new answers derived here (GEN), of the scores of
answers further down (CONT), and of each answer derived here. A walk begins at the bare prompt. It draws from GEN and
CONT. If CONT is larger, the walk enters the answer with the largest draw; otherwise a new answer is derived here. All
choices that led to an answer learn its score.

With several ways of answering (models or prompts), a bandit over all scores of the tree chooses the way. With `stack`,
each node draws its way first and has separate choices for each way. In flight (`pessimistic`), each choice counts every
answer in flight below it as one more score equal to its mean. No choice may have more than the square root of
`max_in_flight` (rounded up) in flight. The published code ignores answers in flight; there only randomness spreads
them.

Draws at ask, for every node of a walk: the ways (`stack`), GEN, CONT, then each answer derived here in the order
scored; then the ways where the walk stops (bandit, if there are several). A Gaussian draw is a gamma and a normal;
where more than `FEW` answers compete, the gammas of all are drawn before their normals.

Source: SakanaAI/treequest src/treequest/algos/ab_mcts_a/{algo,prob_state}.py (arXiv 2503.04412).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from ramify.core.command import Command, Fork, Grow, Option, Outcome
from ramify.core.errors import ConfigError
from ramify.core.tree import Tree
from ramify.strategies.parts.drafts import Draft, DraftsConfig, DraftSearch, Refill
from ramify.strategies.parts.posteriors import (
    Beta,
    BetaPrior,
    Gaussian,
    GaussianPrior,
    Posterior,
    Posteriors,
    RunningMean,
    Variates,
    ucb1,
)

Family = Literal["gaussian", "beta"]
ModelSelection = Literal["multiarm_bandit_thompson", "multiarm_bandit_ucb", "stack"]
"""How the way of answering is chosen: by the largest draw from the posterior of all its scores; by the largest upper
bound; or first at each node, by a draw from the scores below that node (`stack`)."""
Pending = Literal["none", "pessimistic"]
DrawAll = Callable[[Sequence[Any], Variates], list[float]]
"""One draw from each of several posteriors of one family, in order."""
EXPLORATION: Final = math.sqrt(2)
SHOWN: Final = 4
"""Maximum number of answers on the walk that are shown in the viewer."""


def check_adaptive(reward_average_priors: Sequence[float], num_ways: int, *, max_in_flight: int) -> None:
    """Check the options that both variants share. Raises `ConfigError`."""
    if len(reward_average_priors) not in (0, 1, num_ways):
        raise ConfigError(
            f"reward_average_priors = {reward_average_priors!r}: one for each of the {num_ways} ways of answering, or "
            "one for all"
        )
    if max_in_flight < 1:
        raise ConfigError(f"max_in_flight = {max_in_flight!r} must be at least 1")


def sibling_cap(in_flight: Pending, max_in_flight: int) -> float:
    """Maximum number of answers in flight below one choice."""
    return math.inf if in_flight == "none" else math.ceil(math.sqrt(max_in_flight))


@dataclass(frozen=True, slots=True)
class ABMCTSConfig(DraftsConfig):
    """Defaults are treequest's, except for what is in flight."""

    family: Family = "gaussian"
    """Posterior of the mean score of a choice: `gaussian` for any scores, `beta` for scores between 0 and 1."""
    gaussian: GaussianPrior = GaussianPrior()  # noqa: RUF009 - frozen
    """Prior of the family `gaussian`."""
    beta: BetaPrior = BetaPrior()  # noqa: RUF009 - frozen
    """Prior of the family `beta`."""
    model_selection: ModelSelection = "multiarm_bandit_thompson"
    reward_average_priors: tuple[float, ...] = ()
    """Prior mean of each way of answering, or one for all, instead of the prior's own mean. Applies to ways, never to
    answers."""
    max_in_flight: int = 4
    """Most answers grown or judged at once."""
    in_flight: Pending = "pessimistic"
    """How a choice counts answers in flight: each as one more score equal to the mean of the choice (`pessimistic`), or
    not at all (`none`, published)."""
    refill: Refill = "each"

    def __post_init__(self) -> None:
        DraftsConfig.__post_init__(self)
        check_adaptive(self.reward_average_priors, len(self.first_actions), max_in_flight=self.max_in_flight)
        self.way_posteriors()

    def posterior(self) -> Posterior:
        """A new posterior of GEN, CONT or an answer, without scores."""
        return (self.gaussian if self.family == "gaussian" else self.beta).posterior()

    def way_posteriors(self) -> list[Posterior]:
        """A new posterior without scores for each way of answering."""
        prior = self.gaussian if self.family == "gaussian" else self.beta
        means = self.reward_average_priors
        means = means * len(self.first_actions) if len(means) == 1 else means
        if not means:
            return [prior.posterior() for _ in self.first_actions]
        return [prior.around(mean).posterior() for mean in means]


AS_PUBLISHED: Final = ABMCTSConfig(max_in_flight=1, in_flight="none", refill="all")


@dataclass(slots=True, eq=False)
class _Choices:
    """The choices at one node: a new answer, descending, and the answers to enter. With `stack`, for one way only."""

    gen: Posterior
    cont: Posterior
    numbers: list[int] = field(default_factory=list[int])
    posteriors: Posteriors = field(default_factory=Posteriors)
    """Posteriors of the answers in `numbers`."""


@dataclass(slots=True, eq=False)
class _Place:
    """The state of the search at one answer that a walk has reached."""

    options: list[_Choices]
    """One shared by all ways, or one for each way (`stack`)."""
    ways: list[Posterior]
    """For each way, the posterior of the scores below this answer (`stack` only)."""


@dataclass(slots=True, eq=False)
class Walk(Draft):
    """A walk from the bare prompt down to where an answer is derived; `parent` is the answer it has reached."""

    choices: list[Posterior] = field(default_factory=list[Posterior])
    """All choices that led to the new answer. They learn its score."""
    entered: list[tuple[Posteriors, int]] = field(default_factory=list[tuple[Posteriors, int]])
    """Where the answers that it went through compete, and the index of each there."""
    options: _Choices | None = None
    """The choices where the walk ended; the new answer will be added to them."""
    drawn: list[tuple[int, float]] = field(default_factory=list[tuple[int, float]])
    """Each answer it reached, with the draw that selected it; last, the draw of the new answer."""


class ABMCTS(DraftSearch[Walk]):
    """Walk down by draws, derive one answer where the walk ends, and let all choices on the walk learn its score."""

    Config = ABMCTSConfig

    def __init__(self, config: ABMCTSConfig, rng: Variates) -> None:
        super().__init__(config)
        self.config = config
        self.is_order_free = config.max_in_flight == 1
        self._rng = rng
        self._draw_all: DrawAll = Gaussian.draw_all if config.family == "gaussian" else Beta.draw_all
        self._places: dict[int, _Place] = {}
        """By number of the answer. The dict is flat, so a deep search can still be pickled."""
        self._ways = config.way_posteriors()
        """Posterior of each way of answering, over the whole tree."""
        self._seen = [RunningMean() for _ in self._ways]
        self._is_stack = config.model_selection == "stack"
        self._is_pessimistic = config.in_flight == "pessimistic"
        self._cap = sibling_cap(config.in_flight, config.max_in_flight)

    def ask(self, tree: Tree) -> Sequence[Command]:
        walks: list[Walk] = []
        grows: list[Grow] = []
        for _ in range(self._drafts.room(self.config.max_in_flight, self.config.refill)):
            walk = Walk()
            if not self._go(walk):
                break
            tips = self._drafts.tips
            why = tuple([Option(tips[number], drawn) for number, drawn in walk.drawn[-SHOWN:]])
            grows.append(self._drafts.grow(walk, fork=Fork(1, "gen", score=why[-1].score), why=why))
            walks.append(walk)
            self._reserve(walk, 1)
        return self._drafts.ask(walks, grows)

    def tell(self, tree: Tree, outcome: Outcome) -> None:
        walk = self._drafts.tell(tree, outcome)
        if walk is None:
            return
        if walk.score is None:
            self._reserve(walk, -1)
        else:
            self._learn(walk, walk.score)

    def _go(self, walk: Walk) -> bool:
        """Walk from the bare prompt to where an answer is derived; False = too much is in flight on the way."""
        while True:
            place = self._places.get(walk.parent) or self._opened(walk.parent)
            options = place.options[0]
            if self._is_stack:
                walk.way = self._largest(place.ways)
                walk.choices.append(place.ways[walk.way])
                options = place.options[walk.way]
            gen, cont = self._draw_all((options.gen, options.cont), self._rng)
            is_full = options.gen.pending >= self._cap
            if (cont > gen or is_full) and self._enter(walk, options):
                continue
            if not is_full:
                walk.drawn.append((walk.parent, gen))
                self._end(walk, options)
            return not is_full

    def _end(self, walk: Walk, options: _Choices) -> None:
        """Derive a new answer where the walk is now."""
        walk.options = options
        walk.choices.append(options.gen)
        if not self._is_stack:
            walk.way = self._best_way()
            walk.choices.append(self._ways[walk.way])

    def _enter(self, walk: Walk, options: _Choices) -> bool:
        """Enter the answer with the largest draw; False = there is none, or too much is in flight below each."""
        largest = options.posteriors.largest(self._rng, cap=self._cap)
        if largest is None:
            return False
        found, drawn = largest
        walk.parent = options.numbers[found]
        walk.choices += (options.posteriors[found], options.cont)
        walk.entered.append((options.posteriors, found))
        walk.drawn.append((walk.parent, drawn))
        return True

    def _largest(self, posteriors: Sequence[Posterior]) -> int:
        """Index of the largest draw; the first of equal ones."""
        drawn = self._draw_all(posteriors, self._rng)
        return drawn.index(max(drawn))

    def _best_way(self) -> int:
        """The way of answering that the bandit over the whole tree tries next; no draw if there is only one way."""
        if len(self._ways) == 1:
            return 0
        if self.config.model_selection == "multiarm_bandit_thompson":
            return self._largest(self._ways)
        counts = [seen.count + way.pending for seen, way in zip(self._seen, self._ways, strict=True)]
        rows = zip(self._seen, counts, strict=True)
        bounds = [ucb1(seen.mean, n, sum(counts), exploration=EXPLORATION) for seen, n in rows]
        return bounds.index(max(bounds))

    def _opened(self, number: int) -> _Place:
        """The place of an answer that no walk has reached before."""
        config = self.config
        num_options = len(self._ways) if self._is_stack else 1
        options = [_Choices(config.posterior(), config.posterior()) for _ in range(num_options)]
        place = self._places[number] = _Place(options, config.way_posteriors() if self._is_stack else [])
        return place

    def _reserve(self, walk: Walk, number: int) -> None:
        """Add an answer in flight to all choices that led to it, or (-1) remove it."""
        if self._is_pessimistic:
            for posterior in walk.choices:
                posterior.reserve(number)
            self._note(walk)

    def _note(self, walk: Walk) -> None:
        """Tell those that compete which of them have changed."""
        for posteriors, index in walk.entered:
            posteriors.changed(index)

    def _learn(self, walk: Walk, score: float) -> None:
        """All choices that led to the answer learn its score; from now on the answer may be entered."""
        num_answered = int(self._is_pessimistic)
        for posterior in walk.choices:
            posterior.observe(score, num_answered)
        self._note(walk)
        self._seen[walk.way].observe(score)
        if self.config.actions and walk.options is not None:
            own = self.config.posterior()
            own.observe(score)
            walk.options.numbers.append(walk.number)
            walk.options.posteriors.append(own)
