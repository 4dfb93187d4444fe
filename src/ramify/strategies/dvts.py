"""DVTS: diverse verifier tree search. It grows `width` independent paths; at each level each path keeps the best of
`samples` steps.

The parts do not wait for each other. A part ends when its best step has ended. Draws nothing.

Source: huggingface/search-and-learn sal/search/diverse_verifier_tree_search.py.
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
from ramify.strategies.parts.survivors import ranked


@dataclass(frozen=True, slots=True, kw_only=True)
class DVTSConfig(LevelsConfig):
    """Defaults are the corrected ones; numbers are search-and-learn's."""

    width: int = 1
    """Independent parts: n / m in search-and-learn."""
    samples: int = 4
    """Steps that a part grows at each level; it keeps one of them. m in search-and-learn."""
    returned: Literal["finished", "last"] = "finished"
    """Which candidates are returned: every answer found, or the last level of each part, finished or not
    (published)."""
    ends_at: str = ""
    """A part also ends when its path has said these words; empty = none. Published: `boxed{`."""

    def __post_init__(self) -> None:
        LevelsConfig.__post_init__(self)
        if self.width < 1 or self.samples < 1:
            raise ConfigError(f"dvts: width = {self.width!r} and samples = {self.samples!r} must be at least 1")

    @property
    def planned_leaves(self) -> int:
        return self.width * self.samples * self.max_depth


AS_PUBLISHED: Final = DVTSConfig(finished="any_end", returned="last", ends_at="boxed{")


class DVTS(LevelSearch):
    """Each part continues with the best of its steps."""

    Config = DVTSConfig
    config: DVTSConfig
    rule = "dvts"

    def __init__(self, config: DVTSConfig, rng: Draws) -> None:
        super().__init__(config, num_first=config.samples, num_parts=config.width)
        self.chosen: dict[Level, LevelPath] = {}
        """The current path of each part."""
        self._finished: dict[Level, list[LevelPath]] = {part: [] for part in self.parts}

    def select(self, tree: Tree, level: Level) -> list[LevelPath]:
        paths = alive(level.paths())
        self._finished[level] += [path for path in paths if path.is_finished]
        if not paths:
            return []
        best = self.chosen[level] = ranked(paths)[0]
        if self.config.ends_at and self.config.ends_at in tree.branch(best.tip).said:
            return []
        return [best] * (1 if best.is_ended else self.config.samples)

    def candidates(self, tree: Tree) -> Sequence[Candidate]:
        if self.config.returned == "last":
            return [Candidate(path.tip, path.score) for part in self.parts for path in part.paths()]
        return answers([path for part in self.parts for path in self._finished[part]])
