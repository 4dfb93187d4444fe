"""Compare: several settings on the same problems, paired problem by problem.

Owns no run: it watches runs and sums each problem's tree up. Differences are paired bootstraps over problems, because
problems differ far more than settings do; the leaves of one tree are not independent and are never resampled.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ramify.core.ledger import Spend
from ramify.core.tree import Tree
from ramify.runner.events import Event, TreeClosed

NUM_DRAWS = 10_000
"""Bootstrap draws: the error of a 95 % bound is then below 1 % of its width."""


@dataclass(frozen=True, slots=True)
class TreeSummary:
    """One problem under one setting."""

    is_solved: bool
    """Whether any leaf has the full reward."""
    is_mixed: bool
    """Whether leaves differ in reward."""
    rewards: tuple[float, ...]
    spent: Spend
    num_closed: int
    """Paths given up by a rule."""


@dataclass(slots=True)
class Setting:
    """One row of the comparison. `observe` is an observer of the setting's run."""

    name: str
    seconds: float = 0.0
    trees: dict[str, TreeSummary] = field(default_factory=dict)
    """By the problem's uid."""

    def observe(self, event: Event) -> None:
        if isinstance(event, TreeClosed):
            self.trees[event.tree.problem.uid] = summary(event.tree)

    @property
    def spent(self) -> Spend:
        total = Spend()
        for tree in self.trees.values():
            total.add(tree.spent)
        return total

    @property
    def coverage(self) -> float:
        """Share of problems solved."""
        return float(np.mean([tree.is_solved for tree in self.trees.values()]))

    @property
    def mixed(self) -> float:
        return float(np.mean([tree.is_mixed for tree in self.trees.values()]))

    @property
    def mean_reward(self) -> float:
        """Mean over all leaves."""
        rewards = [reward for tree in self.trees.values() for reward in tree.rewards]
        return float(np.mean(rewards)) if rewards else float("nan")


@dataclass(frozen=True, slots=True)
class Difference:
    """A paired difference and its 95 % interval over problems."""

    mean: float
    low: float
    high: float

    @property
    def is_clear(self) -> bool:
        """Whether the interval leaves zero out."""
        return self.low > 0 or self.high < 0


def summary(tree: Tree) -> TreeSummary:
    """Sum a finished tree up."""
    leaves = tree.leaves()
    rewards = tuple(r for leaf in leaves if (r := tree.reward(leaf)) is not None)
    total = Spend()
    for spend in tree.spent().values():
        total.add(spend)
    return TreeSummary(
        is_solved=any(r >= 1 for r in rewards),
        is_mixed=len(set(rewards)) > 1,
        rewards=rewards,
        spent=total,
        num_closed=sum(tree.stop(leaf) == "closed" for leaf in leaves),
    )


def coverage_difference(setting: Setting, baseline: Setting, *, seed: int = 0) -> Difference:
    """Coverage of `setting` less that of `baseline` on the problems both have."""
    uids = [uid for uid in baseline.trees if uid in setting.trees]
    ours = np.array([setting.trees[uid].is_solved for uid in uids], float)
    theirs = np.array([baseline.trees[uid].is_solved for uid in uids], float)
    return paired_bootstrap(ours - theirs, seed=seed)


def paired_bootstrap(differences: Sequence[float] | npt.NDArray[np.float64], *, seed: int = 0) -> Difference:
    """Mean of (P,) differences, one a problem, with a percentile interval from resampled problems."""
    values = np.asarray(differences, float)
    rng = np.random.default_rng(seed)
    means = values[rng.integers(len(values), size=(NUM_DRAWS, len(values)))].mean(axis=1)
    low, high = np.percentile(means, [2.5, 97.5])
    return Difference(float(values.mean()), float(low), float(high))
