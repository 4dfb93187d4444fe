"""Tree of Thoughts: grow several steps, let a judge value them, and continue from the best.

There are two searches. `bfs` grows every path of a level by `width` steps, values all of them and keeps `num_kept`; it
waits for the whole level. `dfs` grows one path at a time, tries its steps from the best down, drops those of too little
value and backtracks. Paths of the last level grow to their end, so a path of `num_levels` steps is an answer. A path
that ended earlier is an answer if it is chosen, and does not grow further.

In the published `propose`, one reply lists several steps. Here a growth is one text on one node, so each proposal is a
separate growth of one step. The `action` sets its prompt, and `duplicate_value` sets what happens to repeats.

Values come from a judge that may see unfinished paths. The judge parses its own replies (`ramify/judges/replies.py`).
The published code caches values by prompt, so a repeated judgement is not sampled again; here attempts are numbered and
each is sampled. bfs with `select = "sample"` draws one uniform for each kept path; nothing else draws.

Source: arXiv 2305.10601; princeton-nlp/tree-of-thought-llm src/tot/methods/bfs.py, scripts/crosswords.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from ramify.core.command import Candidate, Command, Outcome
from ramify.core.errors import ConfigError
from ramify.core.strategy import Phase, Vote
from ramify.core.tree import Tree
from ramify.strategies.parts.draws import Draws
from ramify.strategies.parts.expansion import Expansions
from ramify.strategies.parts.steering import REWARD, Oracle
from ramify.strategies.tot.bfs import LevelRules, ToTLevels
from ramify.strategies.tot.dfs import DepthRules, Depths
from ramify.strategies.tot.values import DuplicateValue


@dataclass(frozen=True, slots=True)
class ToTConfig:
    """Defaults are the corrected ones; numbers are those of game24."""

    search: Literal["bfs", "dfs"] = "bfs"
    """Breadth first, level by level, or depth first with backtracking."""
    width: int = 5
    """Steps grown from each path."""
    num_levels: int = 4
    """Number of steps of the longest path; the last step grows to the end."""
    action: str = "policy"
    """The action that grows the steps."""
    judge: str = "process"
    """Name of the run's judge that values candidates."""
    attempts: int = 3
    """Judgements of each candidate, or votes on each level. Their sum is the value."""
    duplicate_value: DuplicateValue = "drop"
    bfs: LevelRules = LevelRules()  # noqa: RUF009 - frozen
    """Rules of the search `bfs`."""
    dfs: DepthRules = DepthRules()  # noqa: RUF009 - frozen
    """Rules of the search `dfs`."""
    oracle: Oracle = "refused"

    def __post_init__(self) -> None:
        if min(self.width, self.num_levels, self.attempts) < 1:
            raise ConfigError(f"tot: width, num_levels and attempts must be at least 1, got {self!r}")
        if self.judge == REWARD:
            raise ConfigError("tot: judge = 'reward' values ended paths only; name a judge of unfinished ones")
        if self.search == "dfs" and self.bfs.evaluate == "vote":
            raise ConfigError("tot: votes compare the paths of a level, which dfs has none of; evaluate = 'value'")

    @property
    def planned_leaves(self) -> int:
        return self.bfs.num_kept * self.width if self.search == "bfs" else self.dfs.max_steps


AS_PUBLISHED: Final = ToTConfig(width=8, duplicate_value="zero", bfs=LevelRules(repeats="kept", zero_values="stop"))
"""game24, whose prompt shows eight proposals."""
AS_PUBLISHED_TEXT: Final = ToTConfig(
    num_levels=2,
    attempts=5,
    duplicate_value="own",
    bfs=LevelRules(evaluate="vote", num_kept=1, repeats="kept", zero_values="stop"),
)
"""Creative writing: a plan, then a passage."""
AS_PUBLISHED_CROSSWORDS: Final = ToTConfig(
    search="dfs", width=8, num_levels=10, attempts=1, dfs=DepthRules(threshold=0.0, max_steps=100)
)
"""The published threshold is that no clue has become impossible; here the judge must report this as 0. The published
code picks the best state it prints by ground truth, which our vote does not see."""


class ToT:
    """Searches by levels or by depth, as configured."""

    Config = ToTConfig
    measures: frozenset[str] = frozenset()
    post_hoc_reason = "which paths grow on depends on the values of what was grown"
    vote: Vote = "best"

    def __init__(self, config: ToTConfig, rng: Draws) -> None:
        self.config = config
        self.is_order_free = config.attempts == 1
        """The kept paths never depend on the order of outcomes. But with several judgements of a node, its reward in
        the tree is the one told last."""
        is_voted = config.search == "bfs" and config.bfs.evaluate == "vote"
        self._expansions = Expansions(
            config.judge,
            oracle=config.oracle,
            attempts=config.attempts,
            when="asked" if is_voted else "grown",
            twins="judged" if config.duplicate_value == "own" else "left",
        )
        self.walk: ToTLevels | Depths
        if config.search == "bfs":
            self.walk = ToTLevels(config.bfs, config, self._expansions, rng)
        else:
            self.walk = Depths(config.dfs, config, self._expansions)

    def ask(self, tree: Tree) -> Sequence[Command]:
        self.walk.advance(tree)
        return self._expansions.ask()

    def tell(self, tree: Tree, outcome: Outcome) -> None:
        self._expansions.tell(tree, outcome)

    def is_done(self, tree: Tree) -> bool:
        return self.walk.is_over and not self._expansions

    def phase(self, tree: Tree) -> Phase:
        num_rounds = self.config.num_levels if self.config.search == "bfs" else None
        if self.is_done(tree):
            return Phase("collection", self.walk.round, num_rounds)
        return Phase("expansion" if self.walk.round else "build", self.walk.round, num_rounds)

    def candidates(self, tree: Tree) -> Sequence[Candidate]:
        """The chosen paths that ended, with their values: level by level in the order asked (bfs), or in the order
        visited (dfs)."""
        return self.walk.answers
