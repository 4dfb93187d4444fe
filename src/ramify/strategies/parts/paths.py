"""Paths of a level search: what is stored for each, how the scores of its steps are combined, and which paths count."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, assert_never

from ramify.core.command import SHOWN, Candidate, Option

Aggregate = Literal["last", "min", "prod", "mean"]
"""How the scores of a path's steps are combined into one."""


@dataclass(slots=True, eq=False)
class LevelPath:
    """A path, identified by its end. Written once; several places of a level may hold the same path."""

    tip: int
    parent: "LevelPath | None" = None
    nodes: tuple[int, ...] = ()
    """Nodes that its last growth added."""
    scores: tuple[float, ...] = ()
    """One for each step."""
    score: float = 0.0
    """Score of the whole path."""
    is_ended: bool = False
    is_finished: bool = False
    """Whether it counts as an answer."""


def aggregate_scores(scores: Sequence[float], agg: Aggregate) -> float:
    """The score of a path from the scores of its steps; needs at least one."""
    match agg:
        case "last":
            return scores[-1]
        case "min":
            return min(scores)
        case "prod":
            return math.prod(scores)
        case "mean":
            return sum(scores) / len(scores)
        case _:
            assert_never(agg)


def alive(paths: Sequence[LevelPath]) -> list[LevelPath]:
    """Paths that continue or have given an answer."""
    return [path for path in paths if path.is_finished or not path.is_ended]


def answers(paths: Sequence[LevelPath]) -> list[Candidate]:
    """The finished paths among `paths` in their order, each once."""
    finished = {path.tip: path.score for path in paths if path.is_finished}
    return [Candidate(tip, score) for tip, score in finished.items()]


def shown(paths: Sequence[LevelPath]) -> tuple[Option, ...]:
    """The candidates shown in the viewer, best first."""
    ranked = sorted(paths, key=lambda path: -path.score)[:SHOWN]
    return tuple(Option(path.tip, path.score) for path in ranked)
