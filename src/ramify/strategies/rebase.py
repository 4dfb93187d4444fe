"""REBASE: a width shared among live paths in proportion to exp(score / temperature).

The width of a level is the width of the search minus the number of finished paths. A live path whose share is 0 is
dropped. The answers vote. Corrected: shares are rounded by largest remainder, so they sum to the width and do not
depend on the order. Draws nothing.

Source: arXiv 2408.00724; thu-wyz/rebase rebase.py (`select_softmax`, `select_softmax_with_truncation`).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final, Literal

import numpy as np

from ramify.core.command import Candidate
from ramify.core.errors import ConfigError
from ramify.core.strategy import Vote
from ramify.core.tree import Tree
from ramify.strategies.parts.draws import Draws
from ramify.strategies.parts.levels import Level, LevelsConfig, LevelSearch
from ramify.strategies.parts.paths import LevelPath, answers
from ramify.strategies.parts.survivors import Ties

Rounding = Literal["largest_remainder", "guarded_ceil", "ceil_float32", "ceil_float64"]
"""How shares are rounded. `largest_remainder`; or, from the largest share on, each path gets the ceiling of its share
of the remaining width. `guarded_ceil` never exceeds the remaining width and tolerates rounding errors. `ceil_float32`
(published) and `ceil_float64` use the arithmetic of 32 or 64 bit tensors."""
GUARD: Final = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class RebaseConfig(LevelsConfig):
    """Defaults are the corrected ones; numbers are the code's."""

    width: int = 16
    """Paths of the first level; each finished path takes one away from the levels after it."""
    temperature: float = 0.2
    """Temperature of the shares, exp(score / temperature); above 0. A low one gives the best paths more."""
    max_depth: int = 25
    """Maximum number of levels."""
    last_level: Literal["end", "step"] = "step"
    """Whether the last level grows to the end of its paths, or by one step like the others."""
    rounding: Rounding = "largest_remainder"
    ties: Ties = "first"
    """Which of equal scores is served first: the one asked for first, or the last one (published)."""
    truncate: float = 1.0
    """Fraction of the live paths, best first, that share the width."""
    vote: Vote = "weighted"

    def __post_init__(self) -> None:
        LevelsConfig.__post_init__(self)
        if self.width < 1 or not (0 < self.temperature < math.inf) or not (0 < self.truncate <= 1):
            raise ConfigError(
                f"rebase: width = {self.width!r} is at least 1, temperature = {self.temperature!r} above 0 and finite, "
                f"truncate = {self.truncate!r} above 0 and at most 1"
            )

    @property
    def planned_leaves(self) -> int:
        return self.width


AS_PUBLISHED: Final = RebaseConfig(finished="any_end", rounding="ceil_float32", ties="later")


class Rebase(LevelSearch):
    """Share the width, grow, judge, repeat."""

    Config = RebaseConfig
    config: RebaseConfig
    rule = "rebase"

    def __init__(self, config: RebaseConfig, rng: Draws) -> None:
        super().__init__(config, num_first=config.width)
        self._finished: list[LevelPath] = []

    def select(self, tree: Tree, level: Level) -> list[LevelPath]:
        paths = level.paths()
        self._finished += [path for path in paths if path.is_finished]
        live = [path for path in paths if not path.is_ended]
        left = self.config.width - len(self._finished)
        if left < 1 or not live or level.number == self.config.max_depth:
            return []
        counts = self.allot([path.score for path in live], left)
        order = by_score([path.score for path in live], self.config.ties)
        return [live[i] for i in order for _ in range(counts[i])]

    def candidates(self, tree: Tree) -> Sequence[Candidate]:
        return answers(self._finished)

    def allot(self, scores: Sequence[float], width: int) -> list[int]:
        """How many next steps each live path grows."""
        config = self.config
        order = by_score(scores, config.ties)[: math.ceil(len(scores) * config.truncate)]
        best_first = [scores[i] for i in order]
        match config.rounding:
            case "largest_remainder":
                counts = largest_remainders(weights(best_first, config.temperature), width)
            case "guarded_ceil":
                counts = guarded_ceilings(weights(best_first, config.temperature), width)
            case "ceil_float32" | "ceil_float64":
                counts = ceilings(best_first, width, config.temperature, config.rounding)
        found = [0] * len(scores)
        for i, number in zip(order, counts, strict=True):
            found[i] = number
        return found


def by_score(scores: Sequence[float], ties: Ties) -> list[int]:
    """Indices of `scores`, largest first."""
    if ties == "later":
        return sorted(range(len(scores)), key=scores.__getitem__)[::-1]
    return sorted(range(len(scores)), key=lambda i: -scores[i])


def weights(scores: Sequence[float], temperature: float) -> list[float]:
    """exp((score - largest score) / temperature); subtracting the largest score prevents overflow."""
    largest = max(scores)
    return [math.exp((score - largest) / temperature) for score in scores]


def largest_remainders(shares: Sequence[float], width: int) -> list[int]:
    """Integers that sum to `width`, as close as possible to its proportional division by `shares`; ties go to the
    first."""
    total = math.fsum(shares)
    exact = [width * share / total for share in shares]
    counts = [math.floor(x) for x in exact]
    by_remainder = sorted(range(len(shares)), key=lambda i: counts[i] - exact[i])
    for i in by_remainder[: width - sum(counts)]:
        counts[i] += 1
    return counts


def guarded_ceilings(shares: Sequence[float], width: int) -> list[int]:
    """Each share in turn gets the ceiling of its part of the remaining width, never more than remains."""
    counts: list[int] = []
    rests = list(accumulate(reversed(shares)))[::-1]
    for share, rest in zip(shares, rests, strict=True):
        counts.append(min(width, math.ceil(width * share / rest - GUARD)) if rest else 0)
        width -= counts[-1]
    return counts


def ceilings(scores: Sequence[float], width: int, temperature: float, rounding: Rounding) -> list[int]:
    """The published loop with its rounding errors. After the sum of weights has run out, the remaining paths get
    nothing."""
    number = np.float32 if rounding == "ceil_float32" else np.float64
    counts: list[int] = []
    with np.errstate(over="ignore", invalid="ignore"):
        exponentials = np.exp(np.array(scores, number) / number(temperature))
        total = exponentials.sum()
        for weight in exponentials:
            share = number(width) * weight / total if total > 0 else number(0)
            counts.append(math.ceil(share) if np.isfinite(share) else 0)
            width -= counts[-1]
            total -= weight
    return counts
