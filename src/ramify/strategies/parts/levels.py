"""Levels: searches that grow a level of steps, score every step, and only then choose which paths continue.

Each path is judged as soon as it has grown, whether or not it will continue. `select` runs when the whole level is
told, in the order asked, so the tree does not depend on the order of outcomes. A path vanishes if its growth failed or
its judge gave no number: it has no value and holds no place, and the method gives its width to other paths where it
can. When the budget is used up, the search ends after the current level; the paths of this level are still judged.

Independent parts of one search (`num_parts`) do not wait for each other. Lookahead (arXiv 2408.03314) grows the action
`lookahead` from a new step, one step at a time. This text does not belong to any path.
"""

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from ramify.core.command import Candidate, Command, Failed, Fork, Grow, Grown, Judge, Option, Outcome
from ramify.core.errors import ConfigError
from ramify.core.stop import ANSWERED
from ramify.core.strategy import Phase, Vote
from ramify.core.tree import ROOT, Tree
from ramify.strategies.parts.flight import InFlight
from ramify.strategies.parts.paths import Aggregate, LevelPath, aggregate_scores, shown
from ramify.strategies.parts.steering import REWARD, Oracle, steering_value

LOOKAHEAD: Final = "lookahead"


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelsConfig:
    """Options of all level searches."""

    judge: str = "process"
    """Name of the run's judge that scores steps."""
    agg: Aggregate = "last"
    max_depth: int = 40
    """Maximum number of levels."""
    last_level: Literal["end", "step"] = "end"
    """Whether the last level grows to the end of its paths (search-and-learn), or by one step like the others."""
    finished: Literal["answers", "any_end"] = "answers"
    """Paths that count as finished: those that gave an answer, or all that ended, including those that a limit cut
    off."""
    lookahead: int = 0
    """Steps grown from each new step to see where it leads."""
    lookahead_use: Literal["scored", "discarded"] = "scored"
    """`scored`: a path is chosen by its score together with its continuation, combined by `agg`; with `last` this is
    the score of the lookahead's end. `discarded`: the continuation costs tokens but is not used."""
    failure_value: float | None = None
    """Replaces the score of a path that the judge did not score; None = the path vanishes."""
    vote: Vote = "best"
    oracle: Oracle = "refused"

    def __post_init__(self) -> None:
        if self.judge == REWARD:
            raise ConfigError("judge = 'reward' scores ended paths only, and this search scores steps: name a judge")
        if self.max_depth < 1 or self.lookahead < 0:
            raise ConfigError(
                f"max_depth = {self.max_depth!r} must be at least 1 and lookahead = {self.lookahead!r} at least 0"
            )
        if self.failure_value is not None and not math.isfinite(self.failure_value):
            raise ConfigError(f"failure_value = {self.failure_value!r} must be finite, or none")


@dataclass(slots=True, eq=False)
class Level:
    """The current level of one part of a search."""

    number: int = 0
    """0 = nothing has grown yet."""
    beams: list[LevelPath] = field(default_factory=list[LevelPath])
    """Paths to grow from, one entry for each request. Ended paths that hold a place cause no request."""
    grown: list[LevelPath | None] = field(default_factory=list["LevelPath | None"])
    """What each entry became; None = it vanished."""
    why: tuple[Option, ...] = ()
    """The best of the paths among which the entries were chosen."""
    num_waiting: int = 0

    def paths(self) -> list[LevelPath]:
        """The paths to choose from, in the order asked."""
        return [path for path in self.grown if path is not None]


@dataclass(slots=True, eq=False)
class Errand:
    """The purpose of one command."""

    level: Level
    place: int
    kind: Literal["grow", "look", "judge"] = "grow"
    path: LevelPath | None = None
    judged: tuple[int, ...] = ()
    """Nodes whose scores count: the new steps of the path, and its lookahead."""
    num_ahead: int = 0
    """Lookahead steps so far."""


class LevelSearch(ABC):
    """Grows `num_parts` times `num_first` steps from the bare prompt; then `select` decides each next level."""

    measures: frozenset[str] = frozenset()
    is_order_free = True
    post_hoc_reason = "which steps are grown on depends on how they and those beside them were scored"
    rule = "level"
    """Name of the rule in its fork records."""

    def __init__(self, config: LevelsConfig, *, num_first: int, num_parts: int = 1) -> None:
        self.config = config
        self.vote: Vote = config.vote
        self.parts = [Level() for _ in range(num_parts)]
        self._num_first = num_first
        self._whole = list(self.parts)
        """Levels whose outcomes are all told."""
        self._commands: list[Command] = []
        """Commands to ask next; `_errands` has their purposes."""
        self._errands: list[Errand] = []
        self._in_flight: InFlight[Errand] = InFlight()
        self._is_spent = False

    @abstractmethod
    def select(self, tree: Tree, level: Level) -> list[LevelPath]:
        """The entries of the next level, chosen among `level.grown`. Called once for each level; it may draw."""

    @abstractmethod
    def candidates(self, tree: Tree) -> Sequence[Candidate]: ...

    def ask(self, tree: Tree) -> Sequence[Command]:
        if self._whole:
            whole, self._whole = self._whole, []
            for level in whole:
                self._turn(tree, level)
            self._grow([level for level in whole if level.num_waiting])
        if not self._commands:
            return ()
        commands, self._commands = self._commands, []
        errands, self._errands = self._errands, []
        return self._in_flight.book(commands, errands)

    def tell(self, tree: Tree, outcome: Outcome) -> None:
        errand = self._in_flight.take(outcome)
        if isinstance(outcome, Failed):
            self._failed(errand, outcome)
        elif isinstance(outcome, Grown):
            self._grown(tree, errand, outcome)
        else:
            self._keep(errand, self._values(tree, errand))
        errand.level.num_waiting -= 1
        if not errand.level.num_waiting:
            self._whole.append(errand.level)

    def is_done(self, tree: Tree) -> bool:
        return not (self._in_flight or self._commands or self._whole)

    def phase(self, tree: Tree) -> Phase:
        number = max(level.number for level in self.parts)
        if self.is_done(tree):
            return Phase("collection", number)
        return Phase("expansion", number) if number else Phase("build")

    def parent(self, level: Level, place: int) -> LevelPath:
        """The path that the growth at this place continues, as far as the search is concerned."""
        return level.beams[place]

    # -- from level to level ----------------------------------------------------------------------------------------

    def _turn(self, tree: Tree, level: Level) -> None:
        """Choose what to grow next, or end this part."""
        level.why = shown(level.paths())
        level.beams = self.select(tree, level) if level.number else [LevelPath(ROOT)] * self._num_first
        if self._is_spent or level.number == self.config.max_depth or all(path.is_ended for path in level.beams):
            return
        level.number += 1
        level.grown = [path if path.is_ended else None for path in level.beams]
        level.num_waiting = level.grown.count(None)

    def _grow(self, levels: Sequence[Level]) -> None:
        """One growth for each entry that continues. Growths from the same node are one decision."""
        counts = Counter(path.tip for level in levels for path in level.beams if not path.is_ended)
        forks: dict[int, Fork] = {}
        for level in levels:
            is_last = level.number == self.config.max_depth and self.config.last_level == "end"
            for place, path in enumerate(level.beams):
                if path.is_ended:
                    continue
                if path.tip not in forks:
                    score = path.score if path.scores else None
                    forks[path.tip] = Fork(counts[path.tip], self.rule, score=score)
                why, level.why = level.why, ()
                self._commands.append(Grow(path.tip, until="end" if is_last else "step", fork=forks[path.tip], why=why))
                self._errands.append(Errand(level, place))

    # -- one path ---------------------------------------------------------------------------------------------------

    def _failed(self, errand: Errand, outcome: Failed) -> None:
        self._is_spent |= outcome.reason == "budget"
        if errand.kind == "judge" and outcome.reason != "budget":
            self._keep(errand, [None])

    def _grown(self, tree: Tree, errand: Errand, outcome: Grown) -> None:
        if errand.kind == "grow":
            is_ended = tree.is_ended(outcome.tip)
            errand.path = LevelPath(
                outcome.tip,
                self.parent(errand.level, errand.place),
                outcome.nodes,
                is_ended=is_ended,
                is_finished=is_ended and (self.config.finished == "any_end" or tree.stop(outcome.tip) in ANSWERED),
            )
            errand.judged = outcome.nodes
            if self.config.lookahead_use == "discarded":
                self._judge(tree, errand)
        else:
            errand.num_ahead += 1
            if self.config.lookahead_use == "scored":
                errand.judged = (outcome.tip,) if self.config.agg == "last" else (*errand.judged, outcome.tip)
        if not self._look(tree, errand, outcome.tip) and self.config.lookahead_use == "scored":
            self._judge(tree, errand)

    def _look(self, tree: Tree, errand: Errand, tip: int) -> bool:
        """Look one step further ahead, if configured. Returns whether it asked for one."""
        is_last = errand.level.number == self.config.max_depth
        if self._is_spent or is_last or tree.is_ended(tip) or errand.num_ahead == self.config.lookahead:
            return False
        look = Errand(errand.level, errand.place, "look", errand.path, errand.judged, errand.num_ahead)
        self._want(Grow(tip, until="step", action=LOOKAHEAD), look)
        return True

    def _judge(self, tree: Tree, errand: Errand) -> None:
        """Ask for the scores that the nodes do not have yet."""
        nodes = errand.judged
        if any(map(tree.scores, nodes)):
            values = self._values(tree, errand)
            nodes = tuple(node for node, value in zip(nodes, values, strict=True) if value is None)
            if not nodes:
                return self._keep(errand, values)
        errand.kind = "judge"
        return self._want(Judge(nodes, self.config.judge), errand)

    def _want(self, command: Command, errand: Errand) -> None:
        self._commands.append(command)
        self._errands.append(errand)
        errand.level.num_waiting += 1

    def _keep(self, errand: Errand, values: Sequence[float | None]) -> None:
        """Add a path to those to choose from, unless one of its steps has no score."""
        path = errand.path
        assert path is not None and path.parent is not None
        scores = path.parent.scores
        for value in values:
            number = self.config.failure_value if value is None or not math.isfinite(value) else value
            if number is None:
                return
            scores = (*scores, number)
        score = aggregate_scores(scores, self.config.agg)
        if math.isfinite(score):
            path.scores, path.score = scores[: len(path.parent.scores) + len(path.nodes)], score
            errand.level.grown[errand.place] = path

    def _values(self, tree: Tree, errand: Errand) -> list[float | None]:
        """The judge's values of the path's new steps; None where there is none."""
        judge, oracle = self.config.judge, self.config.oracle
        return [steering_value(tree, node, judge, oracle=oracle) for node in errand.judged]


Levels = LevelSearch
"""The old name; it stays for one version."""
