"""Paths of a level search: what it knows of each, how the scores of its steps become one, which of them count."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, assert_never

from ramify.core.command import SHOWN, Candidate, Option

Aggregate = Literal["last", "min", "prod", "mean"]
"""How the scores of a path's steps become one."""


@dataclass(slots=True, eq=False)
class LevelPath:
    """A path by its end. Written once; several places of a level may hold the same one."""

    tip: int
    parent: "LevelPath | None" = None
    nodes: tuple[int, ...] = ()
    """What its last growth added."""
    scores: tuple[float, ...] = ()
    """One a step."""
    score: float = 0.0
    """Of the whole path."""
    is_ended: bool = False
    is_finished: bool = False
    """Whether it counts as an answer."""


def aggregate_scores(scores: Sequence[float], agg: Aggregate) -> float:
    """One score of a path whose steps have these; at least one."""
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
    """Those that go on, or have given an answer."""
    return [path for path in paths if path.is_finished or not path.is_ended]


def answers(paths: Sequence[LevelPath]) -> list[Candidate]:
    """The finished ones among `paths` in their order, each once."""
    finished = {path.tip: path.score for path in paths if path.is_finished}
    return [Candidate(tip, score) for tip, score in finished.items()]


def shown(paths: Sequence[LevelPath]) -> tuple[Option, ...]:
    """The candidates that the viewer is shown, best first."""
    ranked = sorted(paths, key=lambda path: -path.score)[:SHOWN]
    return tuple(Option(path.tip, path.score) for path in ranked)
