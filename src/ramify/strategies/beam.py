"""Beam search over scored steps: `width` paths survive each level, and each grows `samples` next steps.

It covers three published forms: search-and-learn's (finished paths leave the beam), its_hub's (finished paths stay in
the beam and are copied like live ones) and rStar's step beam (finished paths keep their place for good). Corrected by
default: a level is only as wide as the number of answers still to find, a path that a limit cut off is not an answer,
equal paths count once, the best answers are kept, and the first of equal scores wins.

rStar's published beam has four consequences. Finished and dead paths hold places, so a live path may never grow. A step
sampled for one path may be attached to another (`join`). If there are more answers than places, the slice counts from
the end. `has_expanded` looks at the first node only, which has no effect when a beam runs once.

Sources: huggingface/search-and-learn sal/search/beam_search.py; Red-Hat-AI-Innovation-Team/its_hub
its_hub/algorithms/beam_search.py; microsoft/rStar branch rStar-math, rstar_deepthink/agents/beam_search.py (arXiv
2501.04519). Draws nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from ramify.core.command import Candidate
from ramify.core.errors import ConfigError
from ramify.core.tree import Tree
from ramify.strategies.parts.draws import Draws
from ramify.strategies.parts.levels import Level, LevelsConfig, LevelSearch
from ramify.strategies.parts.paths import LevelPath, alive, answers
from ramify.strategies.parts.survivors import (
    RepeatsBy,
    Ties,
    all_with_places,
    best_with_places,
    distinct,
    first_answer,
    ranked,
    tiled,
)

Ended = Literal["leave", "stay", "place_if_best", "place_always"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BeamPublished:
    """Switches that only reproduce the published code; the defaults are the corrected behaviour."""

    room: Literal["shrinks", "full"] = "shrinks"
    """Used where ended paths leave the beam. A level has one path less for each answer found, or always the same number
    of paths (published)."""
    ties: Ties = "first"
    repeats: Literal["dropped", "kept"] = "dropped"
    """Whether live paths with equal text count once (search-and-learn's `filter_duplicates`). Where places are taken
    for good, this includes ended paths."""
    repeats_by: RepeatsBy = "step"
    """`text` (rStar, published): steps that differ only in the tag that ended them are the same."""
    keep_completed: Literal["best", "first"] = "best"
    """Which `width` times `samples` answers are kept if more were found: the best, or the first (published)."""
    keep_answers: Literal["all", "first"] = "all"
    """`first` (rStar, published): if steps grown from one path ended with the tag `answer_end`, the first of them alone
    is used; the others, answers or not, are dropped. They were judged all the same."""
    answer_end: str = "<end_of_answer>"
    """The tag that ends an answer, as the format writes it."""
    join: Literal["path", "position"] = "path"
    """Which path a new step belongs to: the path it was sampled for, or the path at the same position among those that
    hold a place, live or not (rStar, published). This changes what the search believes; the tree stores the step where
    its tokens are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BeamConfig(LevelsConfig):
    """Defaults are the corrected ones; numbers are search-and-learn's."""

    width: int = 1
    """Paths that survive a level: n / m in search-and-learn, `beam_width` in the others."""
    samples: int = 4
    """Next steps grown from each path: m in search-and-learn, budget / width in its_hub, `n_generate_sample` in
    rStar."""
    first_level: Literal["full", "samples"] = "full"
    """Number of first steps: `width` times `samples`, or `samples` (its_hub, and rStar, whose root is one node)."""
    ended: Ended = "leave"
    """What happens to ended paths. `leave`: they leave the beam (search-and-learn). `stay`: they stay and are copied
    (its_hub). `place_if_best`: they take a place for good if they are among the best `width` (rStar, corrected).
    `place_always`: they take a place for good at any rank, and the best paths, ended or not, hold the other places
    (rStar, published)."""
    fill: Literal["level", "path"] = "level"
    """If few paths survive, they are copied until the level is full, or each is copied `samples` times."""
    order: Literal["asked", "score"] = "asked"
    """The order in which surviving paths grow."""
    published: BeamPublished = BeamPublished()
    """Switches that reproduce the published code."""

    def __post_init__(self) -> None:
        LevelsConfig.__post_init__(self)
        if self.width < 1 or self.samples < 1:
            raise ConfigError(f"beam: width = {self.width!r} and samples = {self.samples!r} must be at least 1")
        if self.published.join == "position" and self.fill != "path":
            raise ConfigError("beam: join = 'position' counts `samples` for each path, so fill must be 'path'")

    @property
    def planned_leaves(self) -> int:
        return self.width * self.samples


AS_PUBLISHED: Final = BeamConfig(
    finished="any_end",
    lookahead_use="discarded",
    published=BeamPublished(room="full", ties="argsort", repeats="kept", keep_completed="first"),
)
"""search-and-learn's `beam_search`."""
ITS_AS_PUBLISHED: Final = BeamConfig(
    width=4,
    max_depth=50,
    last_level="step",
    finished="any_end",
    first_level="samples",
    ended="stay",
    order="score",
    published=BeamPublished(repeats="kept"),
)
"""its_hub's `BeamSearch`; depth as in its benchmark."""
RSTAR: Final = BeamConfig(
    width=8,
    samples=8,
    max_depth=16,
    last_level="step",
    first_level="samples",
    ended="place_if_best",
    fill="path",
    order="score",
)
"""rStar's `BS`, corrected; numbers of its evaluation recipe."""
RSTAR_AS_PUBLISHED: Final = BeamConfig(
    width=8,
    samples=8,
    max_depth=16,
    last_level="step",
    first_level="samples",
    ended="place_always",
    fill="path",
    order="score",
    failure_value=0.0,
    published=BeamPublished(repeats_by="text", keep_answers="first", join="position"),
)


class Beam(LevelSearch):
    """Grow a level, keep its best paths, grow from those."""

    Config = BeamConfig
    config: BeamConfig
    rule = "beam"

    def __init__(self, config: BeamConfig, rng: Draws) -> None:
        self._n = config.width * config.samples
        super().__init__(config, num_first=self._n if config.first_level == "full" else config.samples)
        self.completed: list[LevelPath] = []
        """Answers in the order found."""
        self.holders: list[LevelPath] = []
        """Paths that hold a place, both those that can still grow and those that cannot."""
        self._places = config.width
        """Places that no answer has taken for good."""

    def select(self, tree: Tree, level: Level) -> list[LevelPath]:
        paths = level.paths() if self.config.published.repeats == "kept" else self._without_repeats(tree, level.paths())
        if self.config.published.keep_answers == "first":
            paths = self._with_first_answers(tree, paths)
        match self.config.ended:
            case "leave":
                self._leave(paths)
            case "stay":
                self.holders = ranked(alive(paths), self.config.published.ties)[: self.config.width]
                self.completed = [path for path in self.holders if path.is_finished]
            case "place_if_best" | "place_always":
                self._take_places(paths)
        if self.config.order == "asked":
            asked = {path: i for i, path in enumerate(paths)}
            self.holders.sort(key=asked.__getitem__)
        return self._copies()

    def candidates(self, tree: Tree) -> Sequence[Candidate]:
        kept = set(self.kept())
        return answers([path for path in self.completed if path in kept])

    def kept(self) -> list[LevelPath]:
        """At most `width` times `samples` answers: the best, or the first found."""
        found = ranked(self.completed) if self.config.published.keep_completed == "best" else self.completed
        return found[: self._n]

    def parent(self, level: Level, place: int) -> LevelPath:
        by_position = self.config.published.join == "position" and level.number > 1
        return self.holders[place // self.config.samples] if by_position else level.beams[place]

    def _without_repeats(self, tree: Tree, paths: Sequence[LevelPath]) -> list[LevelPath]:
        """Drop paths that repeat an earlier one. Answers that leave the beam, or stay in it, may repeat each other:
        their tokens are already spent, and each has a vote."""
        has_places = self.config.ended in ("place_if_best", "place_always")
        compared = [path for path in paths if has_places or not path.is_ended]
        repeats = set(compared).difference(distinct(tree, compared, self.config.published.repeats_by))
        return [path for path in dict.fromkeys(paths) if path not in repeats]

    def _with_first_answers(self, tree: Tree, paths: Sequence[LevelPath]) -> list[LevelPath]:
        """Of the new paths below one parent what `keep_answers` keeps; paths that held a place stay."""
        held, tips = set(self.holders), dict[LevelPath | None, list[int]]()
        for path in paths:
            if path not in held:
                tips.setdefault(path.parent, []).append(path.tip)
        kept = {tip for below in tips.values() for tip in first_answer(tree, below, self.config.published.answer_end)}
        return [path for path in paths if path in held or path.tip in kept]

    def _leave(self, paths: Sequence[LevelPath]) -> None:
        """Ended paths leave; live paths compete for the places."""
        self.completed += [path for path in paths if path.is_finished]
        places = min(self.config.width, -(-self._room // self.config.samples))
        self.holders = ranked([path for path in paths if not path.is_ended], self.config.published.ties)[:places]

    def _take_places(self, paths: Sequence[LevelPath]) -> None:
        """Answers take places for good; the best paths hold the remaining places."""
        choose = best_with_places if self.config.ended == "place_if_best" else all_with_places
        finished, self.holders = choose(ranked(paths, self.config.published.ties), self._places)
        self.completed += finished
        self._places -= len(finished)

    def _copies(self) -> list[LevelPath]:
        """The entries of the next level."""
        growing = self.holders if self.config.ended == "stay" else [p for p in self.holders if not p.is_ended]
        if self.config.fill == "path":
            return [path for path in growing for _ in range(self.config.samples)]
        return tiled(growing, self._room if self.config.ended == "leave" else len(growing) * self.config.samples)

    @property
    def _room(self) -> int:
        """Number of paths of the next level, where ended paths leave."""
        return max(0, self._n - len(self.completed)) if self.config.published.room == "shrinks" else self._n
