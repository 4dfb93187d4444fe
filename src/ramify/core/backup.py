"""Backup: the arithmetic that DeepSearch's search and its credit have in common. Numbers only.

A finished path is worth a value between -1 and 1, which every segment on it receives times a weight. The credit works
out again what the search had stored, so both must say the same. Source: smiles724/DeepSearch deepsearch/utils/mcts.py.
"""

from collections.abc import Sequence
from typing import Final

FLOOR: Final = 0.1
"""Least weight of a segment (`backup_threshold`)."""
CORRECT: Final = 1.0
WRONG: Final = -1.0


def final_value(reward: float) -> float:
    """Value of a finished path of reward 0 .. 1: 1 is correct, -1 wrong.

    What an incomplete path is worth is its judge's to say: 0 makes it -1, the published default, 0.25 makes it -0.5.
    """
    return 2 * reward - 1


def backup_weight(depth: int, length: int, *, floor: float = FLOOR) -> float:
    """Weight of the segment at `depth` (the root's is 0) on a path of `length` segments, the root counted."""
    return max((depth + 1) / length, floor)


def backed_up(stored: float, value: float, weight: float) -> float:
    """What a segment stores once a path through it has ended with `value`: values of one sign add up, success wins.

    A stored failure is replaced by a success, a stored success stays whatever fails below it.
    """
    if stored * value >= 0:
        return stored + weight * value
    return weight * value if value > 0 else stored


def terminal_choice(values: Sequence[float], surprisals: Sequence[float]) -> int:
    """Which of the finished children of one expansion is backed up: the others are not.

    The correct ones come first, else the wrong, else all that are neither; of these the one whose path has the lowest
    mean surprisal, the first if several have.
    """
    wanted = next((value for value in (CORRECT, WRONG) if value in values), None)
    among = [i for i, value in enumerate(values) if wanted is None or value == wanted]
    return min(among, key=lambda i: surprisals[i])
