"""AT2PO: grow chains, then resample the most uncertain turns in rounds.

Every round scores all steps once: the mean surprisal minus a penalty for the branches beside them. It then grows one
new sibling of each of the best steps to its end (`strategies/parts/resample.py`). `offline` with `choose = "at2po"`
grows like the default of this strategy. The final answers of paths are leaves, and are not candidates by default. The
tokens of a step decide whether it is resampled, so no exact credit accepts these trees.

Draws nothing. Sources: arXiv 2601.04767; zzfoutofspace/ATPO ATPO/scripts/ATPO_qwen3_4B.sh.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ramify.core.command import Fork, Grow, Option
from ramify.core.errors import ConfigError
from ramify.core.tree import Tree
from ramify.strategies.parts.draws import Draws
from ramify.strategies.parts.entropy import LOGPROBS
from ramify.strategies.parts.resample import Penalty, TooFew, highest, origin, scores
from ramify.strategies.parts.rounds import Rounds


@dataclass(frozen=True, slots=True)
class AT2POConfig:
    """Defaults are the corrected ones; numbers are the script's."""

    initial_rollouts: int = 10
    """Chains at the start."""
    expansion_iterations: int = 2
    """Rounds of resampling after the chains; 0 = chains only."""
    expansion_nodes: int = 6
    """Steps resampled in each round. Each gets one new sibling."""
    penalty: float = 0.05
    """Subtracted from a step's score for every branch at its parent after the first."""
    penalty_excludes_initial: bool = False
    """Whether the initial chains cause no penalty. Otherwise ten initial chains subtract .45 from every first turn,
    which is then almost never resampled."""
    candidates: Literal["inner", "all"] = "inner"
    """all: the last steps of paths are candidates too."""
    too_few: TooFew = "once"

    def __post_init__(self) -> None:
        if self.initial_rollouts < 1 or self.expansion_nodes < 1 or self.expansion_iterations < 0:
            raise ConfigError(f"at2po: numbers must be at least 1, expansion_iterations at least 0, got {self!r}")

    @property
    def planned_leaves(self) -> int:
        return self.initial_rollouts + self.expansion_iterations * self.expansion_nodes


AS_PUBLISHED = AT2POConfig(too_few="repeat")


class AT2PO(Rounds):
    """Resample the most uncertain turns."""

    Config = AT2POConfig
    measures: frozenset[str] = frozenset({LOGPROBS})

    def __init__(self, config: AT2POConfig, rng: Draws) -> None:
        super().__init__(config.initial_rollouts, config.expansion_iterations)
        self.config = config
        self._penalty = Penalty(config.penalty, config.initial_rollouts if config.penalty_excludes_initial else 1)

    def expand(self, tree: Tree) -> Sequence[Grow]:
        scored = scores(tree, self._candidates(tree), self._penalty)
        chosen = highest(scored, self.config.expansion_nodes, self.config.too_few)
        return [self._sibling(tree, node, scored[node]) for node in chosen]

    def _candidates(self, tree: Tree) -> Sequence[int]:
        """Steps that may be resampled, breadth first."""
        inner = tree.expandable()
        if self.config.candidates == "inner":
            return inner
        places = set(inner)
        return [n for n in tree.subtree() if n in places or (tree.is_leaf(n) and origin(tree, n) in places)]

    def _sibling(self, tree: Tree, node: int, score: float) -> Grow:
        penalty = self._penalty.of(tree, node)
        why = (Option(node, score, (("surprisal", score + penalty), ("penalty", penalty))),)
        return Grow(origin(tree, node), fork=Fork(1, "at2po", score=score), why=why)
