"""Tracker: the interface of everything that keeps metrics, and the JSON of metrics that are not finite.

A number that is not finite is passed on, because users must see that a metric diverged. In JSON it becomes the word
"NaN", "Infinity" or "-Infinity".
"""

import math
from collections.abc import Mapping
from typing import Protocol


class Tracker(Protocol):
    """Stores metrics. Both methods may raise anything; `Trackers` handles it."""

    def log(self, metrics: Mapping[str, float], *, step_key: str, step: int) -> None:
        """Store `metrics` at `step` of the axis `step_key`, such as `eval/step`."""
        ...

    def close(self) -> None:
        """Write what is not written yet. Nothing is logged afterwards."""
        ...


def in_json(metrics: Mapping[str, float]) -> dict[str, float | str]:
    """`metrics` for JSON: numbers that are not finite become words. Raises `TypeError` for a value that is not a
    number."""
    return {name: float(value) if math.isfinite(value) else _word(value) for name, value in metrics.items()}


def _word(value: float) -> str:
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
