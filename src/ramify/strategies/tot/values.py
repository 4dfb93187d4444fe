"""Values of a level of Tree of Thoughts, as numbers: which are the highest, and what a candidate said twice is worth.

Source: princeton-nlp/tree-of-thought-llm src/tot/methods/bfs.py.
"""

from collections.abc import Sequence
from typing import Literal, assert_never

DuplicateValue = Literal["drop", "share", "zero", "own"]
"""Value of a candidate that says what an earlier one of its place said: it is no candidate, it has the earlier one's,
it has 0 (published), or it is judged for itself (published where candidates are voted on)."""


def duplicate_value(rule: DuplicateValue, own: float | None, first: float | None) -> float | None:
    """Value of a candidate that an earlier one of value `first` equals; None = it is no candidate."""
    match rule:
        case "drop":
            return None
        case "share":
            return first
        case "zero":
            return 0.0
        case "own":
            return own
        case _:
            assert_never(rule)


def greedy(values: Sequence[float], k: int) -> list[int]:
    """Indices of the `k` highest values, highest first; of equal ones the first."""
    return sorted(range(len(values)), key=lambda i: -values[i])[:k]
