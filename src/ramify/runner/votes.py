"""Votes: choose one of several scored answers. Uses only numbers and classes.

The class of an answer is the number of the first answer that means the same. An answer of None has no class and is not
counted. Ties go to the first answer. Source: huggingface/search-and-learn sal/utils/math.py; ties are broken in its
order.
"""

from collections.abc import Mapping, Sequence

from ramify.core.format import IsSame


def classes_of(answers: Sequence[str | None], is_same: IsSame) -> list[int]:
    """For each answer, the number of the first answer that means the same; -1 if the answer is None."""
    found: list[int] = []
    firsts: dict[str, int] = {}
    for number, answer in enumerate(answers):
        if answer is None:
            found.append(-1)
            continue
        if answer not in firsts:
            firsts[answer] = next((seen for one, seen in firsts.items() if is_same(one, answer)), number)
        found.append(firsts[answer])
    return found


def best(classes: Sequence[int], scores: Sequence[float]) -> int | None:
    """Number of the answer with the highest score; None = no answer was given."""
    given = [number for number, kind in enumerate(classes) if kind >= 0]
    return max(given, key=scores.__getitem__, default=None)


def first(classes: Sequence[int]) -> int | None:
    """Number of the first answer."""
    return next((number for number, kind in enumerate(classes) if kind >= 0), None)


def majority(classes: Sequence[int]) -> int | None:
    """Class of the answer given most often."""
    counts = weighted_sums(classes, [1.0] * len(classes))
    return max(counts, key=counts.__getitem__, default=None)


def weighted(classes: Sequence[int], scores: Sequence[float]) -> int | None:
    """Class with the highest sum of scores. The lowest score counts as 0 if negative: no vote counts against an
    answer."""
    sums = weighted_sums(classes, shifted(scores))
    return max(sums, key=sums.__getitem__, default=None)


def weighted_sums(classes: Sequence[int], scores: Sequence[float]) -> Mapping[int, float]:
    """Class -> sum of its scores, classes in order of their first answer."""
    sums: dict[int, float] = {}
    for kind, score in zip(classes, scores, strict=True):
        if kind >= 0:
            sums[kind] = sums.get(kind, 0.0) + score
    return sums


def shifted(scores: Sequence[float]) -> list[float]:
    """The scores, all raised by the same amount so that none is negative."""
    lowest = min(0.0, *scores) if scores else 0.0
    return [score - lowest for score in scores]
