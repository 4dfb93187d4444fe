"""Checks of the goldens of REBASE: how a width is shared out, and whole searches."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from tests.strategies.world import Journey, ListDraws, text_step

from ramify.core.command import Judge
from ramify.core.tree import Step, Tree
from ramify.runner.driver import Start
from ramify.strategies.parts.levels import Level
from ramify.strategies.parts.paths import LevelPath
from ramify.strategies.rebase import AS_PUBLISHED, Rebase, RebaseConfig

Input = Mapping[str, Any]
CONFIGS: Final = {
    "as_published": AS_PUBLISHED,
    "guarded_ceil": replace(AS_PUBLISHED, rounding="guarded_ceil"),
    "corrected": RebaseConfig(),
}


def allocate(given: Input, mode: str | None) -> dict[str, object]:
    def counts(config: RebaseConfig) -> list[int]:
        truncate = given.get("truncate_ratio") or 1.0
        strategy = Rebase(replace(config, temperature=given["temperature"], truncate=truncate), ListDraws())
        return strategy.allot(given["scores"], given["width"])

    found = counts(CONFIGS[mode or ""])
    shared: dict[str, object] = {"counts": found, "sum": sum(found)}
    if mode == "guarded_ceil":
        shared["published_float32"] = counts(AS_PUBLISHED)
        shared["published_float64"] = counts(replace(AS_PUBLISHED, rounding="ceil_float64"))
    return shared


class ListedSteps:
    """Every level's steps, in order of request, have the scores and ends of its list."""

    def __init__(self, levels: Sequence[Sequence[tuple[float, bool]]]) -> None:
        self._levels = levels
        self._num_grown = [0] * len(levels)

    def steps(self, tree: Tree, start: Start) -> list[Step]:
        assert start.place is not None
        depth = tree.depth(start.place.parent)
        score, is_finished = self._levels[depth][self._num_grown[depth]]
        self._num_grown[depth] += 1
        return [text_step(f"{score} ", stop="answer" if is_finished else None, notes={"score": score})]


class WatchedRebase(Rebase):
    """A search that remembers how it shared its width out."""

    def __init__(self, config: RebaseConfig) -> None:
        super().__init__(config, ListDraws())
        self.live: list[int] = []
        self.shared: list[dict[str, object]] = []

    def select(self, tree: Tree, level: Level) -> list[LevelPath]:
        self.live = [path.tip for path in level.paths() if not path.is_ended]
        return super().select(tree, level)

    def allot(self, scores: Sequence[float], width: int) -> list[int]:
        counts = super().allot(scores, width)
        self.shared.append({"remaining_width": width, "live": self.live, "counts": counts})
        return counts


def trace(given: Input, mode: str | None) -> dict[str, object]:
    """The root gets the whole width before anything is shared out."""
    width, levels = given["width"], given["child_scores_and_finished"]
    config = replace(
        CONFIGS[mode or ""], width=width, temperature=given["temperature"], max_depth=len(levels), judge="listed"
    )
    strategy = WatchedRebase(config)

    def judge(tree: Tree, command: Judge) -> list[float]:
        return [tree.notes(node)["score"] for node in command.nodes]

    trip = Journey(strategy, ListedSteps(levels), judge=judge).run()
    first = {"remaining_width": width, "live": [0], "counts": [len(trip.tree.stems())]}
    return {"levels": [first, *strategy.shared], "num_nodes": len(trip.tree)}
