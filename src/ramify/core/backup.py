"""Backup: the arithmetic that DeepSearch's search and its credit share. Numbers only.

A finished path has a value between -1 and 1. Every segment on the path receives the value times a weight. The credit
recomputes what the search stored, so both must use the same functions. Source: smiles724/DeepSearch
deepsearch/utils/mcts.py.
"""

from collections.abc import Sequence
from typing import Final

FLOOR: Final = 0.1
"""Least weight of a segment (`backup_threshold`)."""
CORRECT: Final = 1.0
WRONG: Final = -1.0


def final_value(reward: float) -> float:
    """Value of a finished path with a reward from 0 to 1: 1 is correct, -1 wrong.

    For an incomplete path, its judge decides: reward 0 gives -1, the published default; 0.25 gives -0.5.
    """
    return 2 * reward - 1


def backup_weight(depth: int, length: int, *, floor: float = FLOOR) -> float:
    """Weight of the segment at `depth` (the root's is 0) on a path of `length` segments, including the root."""
    return max((depth + 1) / length, floor)


def backed_up(stored: float, value: float, weight: float) -> float:
    """What a segment stores after a path through it ended with `value`. Values of the same sign add up; success wins.

    A success replaces a stored failure. A stored success stays, whatever fails below it.
    """
    if stored * value >= 0:
        return stored + weight * value
    return weight * value if value > 0 else stored


def terminal_choice(values: Sequence[float], surprisals: Sequence[float]) -> int:
    """Index of the one finished child of an expansion that is backed up.

    It is chosen among the correct children; if there are none, among the wrong ones; if there are none either, among
    all. Of these, the path with the lowest mean surprisal is chosen; ties go to the first.
    """
    wanted = next((value for value in (CORRECT, WRONG) if value in values), None)
    among = [i for i, value in enumerate(values) if wanted is None or value == wanted]
    return min(among, key=lambda i: surprisals[i])
