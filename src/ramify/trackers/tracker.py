"""Tracker: the interface of everything that keeps metrics, and the JSON of metrics that are not finite.

A number that is not finite is passed on, because users must see that a metric diverged. In JSON it becomes the word
"NaN", "Infinity" or "-Infinity".
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
