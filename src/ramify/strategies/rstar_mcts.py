"""rStar's MCTS: rollouts from the root, each of which expands as it goes down until its path can go no further.

A rollout moves to the child of the highest bound; where there are no children it asks for `width` at once, values them
when all have come, and goes on below. It ends after `max_depth` moves or where every child is closed. A finished answer
is worth what its judge says, to every segment above it; a step that went wrong is worth `negative_reward`; a step whose
path goes on is worth what the process judge says, at first to itself alone. A path that went on beyond `max_depth` is
closed. A growth that failed is dropped, and a place where all failed is closed.

Several rollouts at once (`in_flight`): the others' count as visits where one chooses; one that comes to a place that is
being expanded waits for it. With one the tree does not depend on the order of outcomes. Draws nothing.

It is no set of switches of `mcts`: there each sample is chosen from the root and worth one backup; here a rollout keeps
its place between expansions, and what is backed up how far depends on how a step ended.

Source: microsoft/rStar, branch rStar-math, rstar_deepthink/agents/mcts.py, nodes/mcts_node.py, solver.py (arXiv
2501.04519).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, assert_never

from ramify.core.command import (
    SHOWN,
    Candidate,
    Close,
    Command,
    Failed,
    Fork,
    Grow,
    Grown,
    Judge,
    Judged,
    Option,
    Outcome,
    Score,
    siblings,
)
from ramify.core.errors import ConfigError
from ramify.core.stop import ANSWERED, STOP_WORDS
from ramify.core.strategy import Phase, Vote
from ramify.core.tree import ROOT, Tree
from ramify.strategies.parts.draws import Draws
from ramify.strategies.parts.flight import InFlight
from ramify.strategies.parts.steering import REWARD, Oracle, allowed_value, steering_value
from ramify.strategies.parts.survivors import RepeatsBy, first_answer, first_of, untagged
from ramify.strategies.parts.ucb import uct
from ramify.strategies.parts.visited import Visited

ANSWER_END: Final = "<end_of_answer>"
"""rStar's tag at the end of an answer. A boxed answer may end at another tag."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RStarMCTSPublished:
    """Switches that only reproduce the published code; the defaults are the corrected behaviour."""

    unvisited: Literal["first", "parent", "zero"] = "first"
    """A child without visits is chosen before others, for its parent's q, or scores 0 (published)."""
    backup_failures: Literal["root", "leaf"] = "root"
    """How far the value of a step that went wrong goes; `leaf`: a parent of dead ends looks as good as before."""
    propagate_dead: Literal["at_once", "by_rollout"] = "at_once"
    """When a place is closed whose children all are; `by_rollout`: when one comes by, which costs that rollout."""
    keep_answers: Literal["all", "first"] = "all"
    """`first`: if steps of an expansion ended with the tag `answer_end`, the first of them alone is used; the others,
    answers or not, are dropped."""
    answer_end: str = ANSWER_END
    """The tag that ends an answer, as the format writes it."""
    duplicates_by: RepeatsBy = "step"
    """`text`: steps that differ only in the tag that ended them are the same."""


@dataclass(frozen=True, slots=True)
class RStarMCTSConfig:
    """Defaults are the corrected ones; numbers are those of the published evaluation with a process judge."""

    iterations: int = 12
    """Rollouts."""
    width: int = 32
    """Steps sampled at once."""
    max_depth: int = 16
    """Steps of a path, and moves of a rollout; a path may end with one step more."""
    exploration: float = 2.0
    """Weight of the exploration bonus in the UCT score."""
    judge: str = "process"
    """Judge of steps whose path goes on; may be empty where they are not judged."""
    outcome: str = "process"
    """Judge of answers; `reward` = the one whose score is their reward: with an oracle, when collecting trees."""
    steps: Literal["judged", "unjudged"] = "judged"
    """Whether steps have a value before an answer is found below (published when there is a process judge)."""
    positive_reward: float = 1.0
    """What a right answer is worth by the ground truth (a reward of 1 or more, by a judge that saw the answer)."""
    negative_reward: float = -1.0
    """What a step is worth that went wrong, or went on beyond the depth, and a wrong answer by the ground truth (a
    reward of 0 or less)."""
    failure_value: float | None = None
    """What a step is worth to which its judge gave no value; None = nothing, it is closed."""
    leaf_visit: Literal["leaf", "through"] = "leaf"
    """Whether what the process judge says of a step is a visit of it alone, or of those above as well."""
    duplicates: Literal["drop", "keep"] = "drop"
    """Of steps of one expansion that say the same the first alone is used."""
    best_by: Vote = "best"
    ballots: Literal["best_of_rollout", "all"] = "best_of_rollout"
    """Which answers vote: of each rollout the one of the highest value, or all."""
    in_flight: int = 1
    """Rollouts at once."""
    oracle: Oracle = "refused"
    published: RStarMCTSPublished = RStarMCTSPublished()
    """Switches that reproduce the published code."""

    def __post_init__(self) -> None:
        if min(self.iterations, self.width, self.max_depth, self.in_flight) < 1:
            raise ConfigError(f"rstar_mcts: numbers must be at least 1, got {self!r}")
        if not (math.isfinite(self.negative_reward) and math.isfinite(self.positive_reward)):
            raise ConfigError(f"rstar_mcts: positive_reward and negative_reward must be finite, got {self!r}")
        if self.steps == "judged" and not self.judge:
            raise ConfigError("rstar_mcts: judge = '': name the judge of steps, or set steps = 'unjudged'")

    def worth(self, reward: Score) -> float | None:
        """The value of an answer of this reward."""
        return answer_worth(reward, positive=self.positive_reward, negative=self.negative_reward)

    @property
    def planned_leaves(self) -> int:
        return self.iterations * self.width


def answer_worth(reward: Score, *, positive: float, negative: float) -> float | None:
    """By a judge that saw the answer, `negative` for a reward of 0 or less and `positive` for one of 1 or more. Else
    the reward itself.

    Source: microsoft/rStar, rstar_deepthink/agents/mcts.py `eval_final_answer`.
    """
    value = reward.value
    if value is None or not reward.is_oracle or 0 < value < 1:
        return value
    return positive if value >= 1 else negative


PUBLISHED: Final = RStarMCTSPublished(
    unvisited="zero",
    backup_failures="leaf",
    propagate_dead="by_rollout",
    keep_answers="first",
    duplicates_by="text",
)
"""The switches of both published modes."""
AS_PUBLISHED: Final = RStarMCTSConfig(
    failure_value=-1.0,
    published=PUBLISHED,
)
"""Of the evaluation, with a process judge and without an oracle."""
SAMPLING_AS_PUBLISHED: Final = RStarMCTSConfig(
    iterations=48,
    width=12,
    judge="",
    outcome=REWARD,
    steps="unjudged",
    failure_value=-1.0,
    oracle="declared",
    published=PUBLISHED,
)
"""Of the collection of trees with ground truth, before there is a process judge."""


@dataclass(slots=True, eq=False, repr=False)
class RStarState(Visited):
    """A step, how its path ended, and the rollouts at it."""

    stop: str | None = None
    """How the path ended here; `depth_limit` where the search ended it."""
    in_flight: int = 0
    """Rollouts standing here or below."""

    @property
    def is_answer(self) -> bool:
        return self.stop in ANSWERED

    @property
    def is_expanding(self) -> bool:
        return self.is_expanded and not (self.children or self.is_closed)


@dataclass(slots=True, eq=False)
class _Rollout:
    """One way down. Mutated by the search alone."""

    number: int
    at: RStarState
    moves: list[int] = field(default_factory=list[int])
    """Nodes of the tree it stood on."""
    weighed: list[tuple[float, RStarState]] = field(default_factory=list[tuple[float, RStarState]])
    """Scores of the last choice."""


@dataclass(slots=True, eq=False)
class _Expansion:
    """Children of one place on their way, then their values. Mutated by the search alone."""

    above: RStarState
    rollout: _Rollout
    grown: dict[int, Grown] = field(default_factory=dict[int, Grown])
    """Number of the request -> what came."""
    children: list[RStarState] = field(default_factory=list[RStarState])
    num_in_flight: int = 0


Note = tuple[_Expansion, int] | None
"""Expansion and number of the request or the child; None = a Close."""


class RStarMCTS:
    """Move, expand, value, move on."""

    Config = RStarMCTSConfig
    measures: frozenset[str] = frozenset()
    post_hoc_reason = "which steps are expanded depends on the values of others"

    def __init__(self, config: RStarMCTSConfig, rng: Draws) -> None:
        self.config = config
        self.vote: Vote = config.best_by
        self.is_order_free = config.in_flight == 1
        self.root = RStarState(ROOT)
        self.rollouts: list[_Rollout] = []
        """All that have begun, in order."""
        self._active: list[_Rollout] = []
        self._in_flight: InFlight[Note] = InFlight()
        self._waiting: list[tuple[Command, Note]] = []
        self._finals: list[tuple[int, int, float]] = []
        """Number of the rollout, node and value of every answer."""
        self._is_spent = False
        self._is_over = False

    def ask(self, tree: Tree) -> Sequence[Command]:
        if self._is_over:
            return []
        self._advance()
        asked, self._waiting = self._waiting, []
        self._is_over = not asked and not self._in_flight
        return self._in_flight.book([command for command, _ in asked], [note for _, note in asked])

    def tell(self, tree: Tree, outcome: Outcome) -> None:
        note = self._in_flight.take(outcome)
        if isinstance(outcome, Failed) and outcome.reason == "budget":
            self._is_spent = True
        if note is None:
            return
        expansion, number = note
        expansion.num_in_flight -= 1
        if isinstance(outcome, Grown):
            expansion.grown[number] = outcome
        elif isinstance(outcome, Judged):
            child = expansion.children[number]
            child.reward = allowed_value(outcome.scores[0], child.tip, oracle=self.config.oracle)
        if expansion.num_in_flight:
            return
        if not expansion.children:
            self._seek_values(tree, expansion)
        if not expansion.num_in_flight:
            self._complete(expansion)

    def is_done(self, tree: Tree) -> bool:
        return self._is_over and not self._in_flight

    def phase(self, tree: Tree) -> Phase:
        if not self.rollouts:
            return Phase("build")
        name = "collection" if self.is_done(tree) else "expansion"
        return Phase(name, len(self.rollouts), self.config.iterations)

    def candidates(self, tree: Tree) -> Sequence[Candidate]:
        """Answers in the order they were valued, those alone that vote."""
        if self.config.ballots == "all":
            return [Candidate(tip, value) for _, tip, value in self._finals]
        best: dict[int, tuple[int, float]] = {}
        for number, tip, value in self._finals:
            if number not in best or value > best[number][1]:
                best[number] = (tip, value)
        return [Candidate(tip, value) for tip, value in best.values()]

    # -- moving -------------------------------------------------------------------------------------------------------

    def _advance(self) -> None:
        """Move every rollout as far as it can go, and begin others while there is room."""
        for rollout in list(self._active):
            self._move(rollout)
        while len(self._active) < self.config.in_flight and self._may_begin():
            rollout = _Rollout(len(self.rollouts), self.root)
            self.rollouts.append(rollout)
            self._active.append(rollout)
            self.root.in_flight += 1
            if self.root.children or self.root.is_closed:
                self._descend(rollout)
            self._stand(rollout)
            self._move(rollout)

    def _may_begin(self) -> bool:
        is_dead = self.root.is_closed and self.config.published.propagate_dead == "at_once"
        return not self._is_spent and len(self.rollouts) < self.config.iterations and not is_dead

    def _move(self, rollout: _Rollout) -> None:
        """Go down until a place is to be expanded, or is being expanded, or the rollout ends."""
        while rollout in self._active and not rollout.at.is_expanding:
            if not (rollout.at.children or rollout.at.is_closed):
                if self._is_spent:
                    return self._end(rollout)
                return self._expand(rollout)
            self._descend(rollout)
            if len(rollout.moves) >= self.config.max_depth:
                return self._end(rollout)
            self._stand(rollout)
        return None

    def _stand(self, rollout: _Rollout) -> None:
        if rollout in self._active:
            rollout.moves.append(rollout.at.tip)

    def _descend(self, rollout: _Rollout) -> None:
        """To the best child, or to the rollout's end where there is none that may be chosen."""
        at = rollout.at
        live = at.open_children()
        if not live:
            self._close(at)
            return self._end(rollout)
        rollout.weighed = [(self._score(child), child) for child in live]
        rollout.at = max(rollout.weighed, key=_first)[1]
        rollout.at.in_flight += 1
        return None

    def _end(self, rollout: _Rollout) -> None:
        if rollout in self._active:
            self._active.remove(rollout)
            for node in rollout.at.path():
                node.in_flight -= 1

    def _score(self, child: RStarState) -> float:
        """Upper confidence bound of a child; other rollouts below it count as visits of the parent's and its own."""
        parent = child.parent
        assert parent is not None
        visits = child.visits + child.in_flight
        if not visits:
            return self._first_score(parent)
        return uct(child.q, visits, parent.visits + max(0, parent.in_flight - 1), exploration=self.config.exploration)

    def _first_score(self, parent: RStarState) -> float:
        match self.config.published.unvisited:
            case "first":
                return math.inf
            case "parent":
                return parent.q
            case "zero":
                return 0.0
            case _:
                assert_never(self.config.published.unvisited)

    # -- expanding ----------------------------------------------------------------------------------------------------

    def _expand(self, rollout: _Rollout) -> None:
        """Ask for the children of the place a rollout stands at."""
        at = rollout.at
        at.is_expanded = True
        expansion = _Expansion(at, rollout, num_in_flight=self.config.width)
        fork, why = Fork(self.config.width, "expansion"), _why(rollout)
        for number, grow in enumerate(siblings(Grow(at.tip, until="step", fork=fork, why=why))):
            self._waiting.append((grow, (expansion, number)))

    def _seek_values(self, tree: Tree, expansion: _Expansion) -> None:
        """All children have come: keep those that count, and ask for the values that nobody has given."""
        for grown in self._kept(tree, expansion):
            child = self._child(tree, expansion.above, grown)
            number = len(expansion.children)
            expansion.children.append(child)
            if not child.is_answer and (child.has_ended or self.config.steps == "unjudged"):
                continue
            judge = self.config.outcome if child.is_answer else self.config.judge
            child.reward = steering_value(tree, child.tip, judge, oracle=self.config.oracle)
            if judge == REWARD and (reward := tree.reward_score(child.tip)) is not None:
                child.reward = self.config.worth(reward)
            if child.reward is None and judge != REWARD:
                self._waiting.append((Judge((child.tip,), judge), (expansion, number)))
                expansion.num_in_flight += 1

    def _kept(self, tree: Tree, expansion: _Expansion) -> list[Grown]:
        """What came, in order of request, without what was cut off from outside."""
        grown = [expansion.grown[number] for number in sorted(expansion.grown)]
        kept = [g for g in grown if not tree.is_ended(g.tip) or STOP_WORDS[tree.stop(g.tip) or ""].is_trainable]
        if self.config.duplicates == "drop":
            kept = _distinct(tree, kept, self.config.published.duplicates_by)
        if self.config.published.keep_answers == "all":
            return kept
        chosen = first_answer(tree, [g.tip for g in kept], self.config.published.answer_end)
        return [g for g in kept if g.tip in chosen]

    def _child(self, tree: Tree, above: RStarState, grown: Grown) -> RStarState:
        """A new child; one beyond the depth whose path goes on is closed on the tree as well."""
        stop, depth = tree.stop(grown.tip), above.depth + 1
        if stop is None and depth > self.config.max_depth:
            stop = "depth_limit"
            self._waiting.append((Close(grown.tip, stop), None))
        return RStarState(grown.tip, above, depth, stop is not None, stop=stop)

    def _complete(self, expansion: _Expansion) -> None:
        """Back every value up, in order of request, and let rollouts go on."""
        above = expansion.above
        above.children = expansion.children
        for child in above.children:
            self._back_up(expansion.rollout, child)
        if not above.children or self.config.published.propagate_dead == "at_once":
            self._close(above)

    def _back_up(self, rollout: _Rollout, child: RStarState) -> None:
        config, value = self.config, child.reward
        child.is_closed = child.has_ended
        if child.has_ended and not child.is_answer:
            return _visit(child, config.negative_reward, config.published.backup_failures)
        if not child.has_ended and config.steps == "unjudged":
            return None
        if value is None or not math.isfinite(value):
            child.is_closed = True
            return None if config.failure_value is None else _visit(child, config.failure_value, "leaf")
        if child.is_answer:
            self._finals.append((rollout.number, child.tip, value))
            return _visit(child, value, "root")
        return _visit(child, value, "leaf" if config.leaf_visit == "leaf" else "root")

    def _close(self, node: RStarState) -> None:
        """Close it; with `at_once`, if no child is open, and then those above of which the same is true."""
        if self.config.published.propagate_dead == "at_once":
            node.close_if_exhausted()
        else:
            node.is_closed = True


def _distinct(tree: Tree, grown: Sequence[Grown], by: RepeatsBy) -> list[Grown]:
    """The first of those that say the same; only what is equally long is read."""
    if by == "text":
        return first_of([untagged(tree, each.nodes) for each in grown], grown)
    lengths = [tree.length(each.tip) for each in grown]
    said = [
        tree.content_key(*each.nodes) if lengths.count(length) > 1 else each.tip
        for each, length in zip(grown, lengths, strict=True)
    ]
    return first_of(said, grown)


def _first(pair: tuple[float, RStarState]) -> float:
    return pair[0]


def _why(rollout: _Rollout) -> tuple[Option, ...]:
    """What the rollout chose among at last, best first, for the viewer."""
    ranked = sorted((pair for pair in rollout.weighed if math.isfinite(pair[0])), key=lambda pair: -pair[0])
    return tuple(
        Option(child.tip, score, (("q", child.q), ("visits", float(child.visits)))) for score, child in ranked[:SHOWN]
    )


def _visit(node: RStarState, value: float, extent: Literal["root", "leaf"]) -> None:
    """Add a value to `node`, and with `root` to all above it."""
    for visited in node.path() if extent == "root" else [node]:
        visited.visit(value)
