"""Chains: independent rollouts from the bare prompt. Plain GRPO samples this way, and every tree is compared with it.

With `repeat`, a new chain starts whenever one has ended. `closed` replaces only the chains that a prune rule stopped
(restart at a dead end). `budget` replaces every chain until the budget of the tree is used up. In both cases the number
of chains depends on sampled tokens, so the tree marks the later chains as post-hoc.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ramify.core.command import Fork, Grow, Grown, Outcome
from ramify.core.errors import ConfigError
from ramify.core.strategy import Phase
from ramify.core.tree import ROOT, Tree
from ramify.strategies.parts.draws import Draws
from ramify.strategies.parts.repeats import repeats


@dataclass(frozen=True, slots=True)
class ChainsConfig:
    """How many chains to grow, and whether ended chains are replaced."""

    n: int = 8
    """Chains in flight at once. Without `repeat` this is the total number of chains."""
    repeat: Literal["none", "closed", "budget"] = "none"
    """Which ended chains a new chain replaces: none; those that a prune rule ended (`closed`); or all, until the budget
    of the tree is used up (`budget`)."""
    max_chains: int = 10_000
    """Maximum number of chains of a tree with `repeat` that meets no other limit."""

    @classmethod
    def read(cls, options: Mapping[str, Any]) -> tuple[Mapping[str, Any], str | None]:
        """Read Search-R1's `n_agent` x `n` as one number of chains."""
        if "n_agent" not in options:
            return options, None
        found = repeats(options)
        others = {name: value for name, value in options.items() if name != "n_agent"}
        return {**others, "n": found.n}, found.reading

    def __post_init__(self) -> None:
        if not 1 <= self.n <= self.max_chains:
            raise ConfigError(f"chains: need 1 <= n <= max_chains, got n={self.n!r}, max_chains={self.max_chains!r}")

    @property
    def planned_leaves(self) -> int:
        return self.n


class Chains:
    """Grow `n` chains to their ends. Draws nothing."""

    Config = ChainsConfig
    measures: frozenset[str] = frozenset()

    def __init__(self, config: ChainsConfig, rng: Draws) -> None:
        self.config = config
        self.is_order_free = config.repeat == "none"
        self.post_hoc_reason = "" if config.repeat == "none" else "how many chains there are depends on how chains end"
        self._num_wanted = config.n
        self._num_asked = 0
        self._num_told = 0

    def ask(self, tree: Tree) -> Sequence[Grow]:
        number, is_first = self._num_wanted - self._num_asked, self._num_asked == 0
        self._num_asked = self._num_wanted
        fork = Fork(number, "chains" if is_first else "restart") if number else None
        return [Grow(ROOT, fork=fork) for _ in range(number)]

    def tell(self, tree: Tree, outcome: Outcome) -> None:
        self._num_told += 1
        if self._is_to_repeat(tree, outcome) and self._num_wanted < self.config.max_chains:
            self._num_wanted += 1

    def is_done(self, tree: Tree) -> bool:
        return self._num_told == self._num_wanted

    def phase(self, tree: Tree) -> Phase:
        if not self._num_asked:
            return Phase("build")
        return Phase("collection" if self.is_done(tree) else "initial chains")

    def _is_to_repeat(self, tree: Tree, outcome: Outcome) -> bool:
        """Whether a new chain follows the one that ended. A failed chain is never replaced."""
        if not isinstance(outcome, Grown):
            return False
        match self.config.repeat:
            case "none":
                return False
            case "closed":
                return tree.stop(outcome.tip) == "closed"
            case "budget":
                return tree.stop(outcome.tip) not in ("budget", "deadline")
