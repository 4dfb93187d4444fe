"""Tracker: the interface of everything that keeps figures, and how figures that are not finite are written as JSON.

A number that is not finite is passed on, because a figure that ran away must be seen. Where a number must be JSON it
becomes one of the words "NaN", "Infinity" and "-Infinity".
"""

import math
from collections.abc import Mapping
from typing import Protocol


class Tracker(Protocol):
    """Keeps figures. Both methods may raise anything; `Trackers` deals with that."""

    def log(self, metrics: Mapping[str, float], *, step_key: str, step: int) -> None:
        """Keep `metrics` at `step` of the axis `step_key`, such as `eval/step`."""
        ...

    def close(self) -> None:
        """Write what is still to be written. Nothing is logged afterwards."""
        ...


def in_json(metrics: Mapping[str, float]) -> dict[str, float | str]:
    """`metrics` as JSON has them: numbers that are not finite are words. Raises `TypeError` for what is no number."""
    return {name: float(value) if math.isfinite(value) else _word(value) for name, value in metrics.items()}


def _word(value: float) -> str:
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
