"""Values of a level in Tree of Thoughts, as numbers: which are the highest, and the value of a repeated candidate.

Source: princeton-nlp/tree-of-thought-llm src/tot/methods/bfs.py.
"""

from collections.abc import Sequence
from typing import Literal, assert_never

DuplicateValue = Literal["drop", "share", "zero", "own"]
"""Value of a candidate with the text of an earlier candidate at the same place. `drop`: it is not a candidate. `share`:
it has the earlier one's value. `zero`: 0 (published). `own`: it is judged separately (published for votes)."""


def duplicate_value(rule: DuplicateValue, own: float | None, first: float | None) -> float | None:
    """Value of a candidate that repeats an earlier one with value `first`; None = it is not a candidate."""
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
    """Indices of the `k` highest values, highest first; the first of equal ones."""
    return sorted(range(len(values)), key=lambda i: -values[i])[:k]
