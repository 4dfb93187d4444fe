"""Particle filter over scored steps: `n` paths, resampled in proportion to the judge's scores.

The filter reads the judge's score of a step as a probability. The odds of this probability are the potential of the
path. Corrected: the weight of a path is multiplied by the ratio of its potentials after and before its last step, so
stopped paths keep their weight. Paths are resampled only when their effective number falls below n/2, by systematic
resampling, and have equal weights afterwards. Published: the weight of a path is its potential, and `n` paths are drawn
independently after every level. Ended paths are drawn like live ones but do not grow.

Draws when a level is complete: one number for each place (`multinomial`) or one in total (`systematic`). Source: arXiv
2502.01618; Red-Hat-AI-Innovation-Team/its_hub its_hub/algorithms/particle_gibbs.py.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from ramify.core.command import Candidate
from ramify.core.errors import ConfigError
from ramify.core.tree import Tree
from ramify.strategies.parts.allotment import softmax
from ramify.strategies.parts.draws import Draws
from ramify.strategies.parts.levels import Level, LevelsConfig, LevelSearch
from ramify.strategies.parts.paths import LevelPath, alive, answers
from ramify.strategies.parts.ucb import inverse_cdf

MARGIN: Final = 1e-7
"""Minimum distance of a probability from 0 and 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParticleFilterConfig(LevelsConfig):
    """Defaults are the corrected ones."""

    n: int = 8
    """Number of particles: paths that grow side by side."""
    max_depth: int = 50
    """As in its_hub's benchmark."""
    last_level: Literal["end", "step"] = "step"
    """Whether the last level grows to the end of its paths, or by one step like the others."""
    weights: Literal["ratio", "potential"] = "ratio"
    """The weight of a path: the ratio of its potentials now and at the last resampling, or its potential
    (published)."""
    resample: Literal["when_degenerate", "always"] = "when_degenerate"
    """Resample when the effective number of paths is below n/2 and at least one still grows, or after every level."""
    scheme: Literal["systematic", "multinomial"] = "systematic"
    """How paths are resampled: with one draw for all places, which varies least, or with one independent draw for each
    place (published)."""

    def __post_init__(self) -> None:
        LevelsConfig.__post_init__(self)
        if self.n < 1:
            raise ConfigError(f"particle_filter: n = {self.n!r} must be at least 1")

    @property
    def planned_leaves(self) -> int:
        return self.n


AS_PUBLISHED: Final = ParticleFilterConfig(
    finished="any_end", weights="potential", resample="always", scheme="multinomial"
)


class ParticleFilter(LevelSearch):
    """Grow every particle by a step, weigh the particles, resample."""

    Config = ParticleFilterConfig
    config: ParticleFilterConfig
    rule = "particles"

    def __init__(self, config: ParticleFilterConfig, rng: Draws) -> None:
        super().__init__(config, num_first=config.n)
        self._rng = rng
        self._log_weights = [0.0] * config.n
        """Log weight of each entry of the current level, before its step."""
        self.particles: list[LevelPath] = []
        """Paths after the last level; a path drawn several times appears several times."""

    def select(self, tree: Tree, level: Level) -> list[LevelPath]:
        kept = set(alive(level.paths()))
        grown = [(path, i) for i, path in enumerate(level.grown) if path is not None and path in kept]
        paths = [path for path, _ in grown]
        log_weights = [self._log_weight(level.beams[i], path, self._log_weights[i]) for path, i in grown]
        weights = softmax(log_weights, 1.0)
        if self._is_to_resample(paths, weights):
            ancestors = self.ancestors(weights)
            paths, log_weights = [paths[i] for i in ancestors], [0.0] * len(ancestors)
        self.particles, self._log_weights = paths, log_weights
        return paths

    def candidates(self, tree: Tree) -> Sequence[Candidate]:
        """Finished particles, each once, with the score of its path. The particle with the largest potential also has
        the largest score."""
        return answers(self.particles)

    def ancestors(self, weights: Sequence[float]) -> list[int]:
        """For each of n places, the index of the path it continues."""
        if self.config.scheme == "systematic":
            return systematic(weights, self.config.n, self._rng.random())
        return [inverse_cdf(weights, self._rng.random()) for _ in range(self.config.n)]

    def _log_weight(self, before: LevelPath, after: LevelPath, log_weight: float) -> float:
        if self.config.weights == "potential":
            return log_odds(after.score)
        if after is before:
            return log_weight
        return log_weight + log_odds(after.score) - (log_odds(before.score) if before.scores else 0.0)

    def _is_to_resample(self, paths: Sequence[LevelPath], weights: Sequence[float]) -> bool:
        if not paths:
            return False
        if self.config.resample == "always":
            return True
        is_growing = not all(path.is_ended for path in paths)
        return is_growing and effective_number(weights) < self.config.n / 2


def log_odds(probability: float) -> float:
    """ln(p / (1 - p)), with p limited to [MARGIN, 1 - MARGIN]."""
    p = min(max(probability, MARGIN), 1 - MARGIN)
    return math.log(p / (1 - p))


def effective_number(weights: Sequence[float]) -> float:
    """1 / sum of squared weights. The weights must sum to 1."""
    return 1 / math.fsum(weight * weight for weight in weights)


def systematic(weights: Sequence[float], n: int, u: float) -> list[int]:
    """n indices in ascending order, each chosen floor(n w) or one more times. The points (u + i) / n select them on the
    cumulative weights."""
    total = math.fsum(weights)
    found: list[int] = []
    index, reached = 0, weights[0]
    for i in range(n):
        while reached <= (u + i) / n * total and index < len(weights) - 1:
            index += 1
            reached += weights[index]
        found.append(index)
    return found
