"""Loose run: trees that belong to no run folder, shown as one: those of a rollout in memory, or of a foreign file."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ramify.config.run_config import StrategyConfig
from ramify.core.growth import Growth
from ramify.core.limits import Limits
from ramify.core.tree import Tree
from ramify.rows.row import Row
from ramify.store.records import ClosedRecord, TreeRecord
from ramify.store.replay import Replayed
from ramify.view.followed_tree import ClosedLine, FollowedTree, OpenedLine
from ramify.view.opened_run import OpenedRun
from ramify.view.run_news import RunNews
from ramify.view.tree_row import tree_row

DONE = "done"


@dataclass(frozen=True, slots=True)
class TreeTerms:
    """How the trees of a run are read."""

    strategy: StrategyConfig = field(default_factory=StrategyConfig)
    """Its options say which judges' scores are the values of nodes."""
    limits: Limits = Limits()
    """Of each tree."""
    rows_of: Callable[[Tree], Sequence[Row]] | None = None
    """Makes training rows; None = there are none."""


@dataclass
class LooseRun:
    """Finished trees by number. It has what a followed run has, and never changes."""

    name: str
    loose: Mapping[int, Tree]
    title: str = ""
    facts: Mapping[int, Mapping[str, Any]] = field(default_factory=dict[int, Mapping[str, Any]])
    """Number -> what a file says of a tree besides."""
    facts_of_file: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """What a file says of all its trees."""
    trees: Mapping[int, FollowedTree] = field(init=False)
    """The row of each tree."""
    terms: TreeTerms = field(default_factory=TreeTerms)
    path: Path = Path()
    opened: OpenedRun | None = None
    faults: Sequence[str] = ()
    gaps: Sequence[str] = ()
    folders: Sequence[Path] = ()
    news: RunNews = field(default_factory=RunNews)
    revision = 0
    is_growing = False
    is_filled = True

    def __post_init__(self) -> None:
        self.trees = {number: self._followed(number, tree) for number, tree in sorted(self.loose.items())}

    def look(self) -> set[int]:
        return set()

    def fill(self, budget_s: float) -> bool:
        return False

    def replayed(self, number: int) -> Replayed:
        """A tree as it would be replayed, without the events that grew it, which nobody kept."""
        tree = self.loose[number]
        shut = ClosedRecord(tree=number, reason=DONE, num_leaves=tree.num_leaves)
        return Replayed(number, Growth(tree), shut=shut)

    def records(self, number: int) -> list[TreeRecord]:
        """Nobody kept any."""
        return []

    def _followed(self, number: int, tree: Tree) -> FollowedTree:
        problem = tree.problem
        return FollowedTree(
            number=number,
            folder=self.path,
            opened=OpenedLine(problem.uid, problem.question, problem.split),
            revision=0,
            closed=ClosedLine(DONE, tree.num_leaves),
            row=tree_row(self.replayed(number)),
        )
