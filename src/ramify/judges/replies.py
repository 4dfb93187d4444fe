"""Replies: reads a judge's text as numbers. Pure: text in, numbers out, no requests.

Each function has a corrected reading and the published one, whose errors are kept exactly. A reply that cannot be read
is no vote and no value: None, never 0, unless the published reading differs.

Sources: princeton-nlp/tree-of-thought-llm src/tot/tasks/{text,game24}.py and
scripts/crosswords/search_crosswords-dfs.ipynb; lapisrocks/LanguageAgentTreeSearch hotpot/hotpotqa.py.
"""

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, Literal

Reading = Literal["corrected", "as_published"]

CHOICE: Final = "best choice is "
"""A voter writes this before the number of its choice."""
SCORE: Final = "score is"
"""A scorer of LATS writes this before its integer from 1 to 10."""
LABELS: Final[Mapping[str, float]] = MappingProxyType({"impossible": 0.001, "likely": 1, "sure": 20})
"""Values of the labels of game24."""
CONFIDENCES: Final[Mapping[str, float]] = MappingProxyType({"certain": 1, "high": 0.5, "medium": 0.2, "low": 0.1})
"""Values of the confidence words of the crosswords."""

_INTEGER = re.compile(r"\d+")
_MOST_DIGITS = 9
"""A number with more digits is not a choice: no list of candidates is that long."""


def votes(replies: Sequence[str], num_candidates: int, *, reading: Reading = "corrected") -> list[int]:
    """(num_candidates,) number of replies that chose each candidate. Candidates are numbered from 1 in the text.

    The corrected reading takes the last whole integer after the first "best choice is ". The published reading takes
    only its last digit, so "12" votes for 2 and "10" for none.
    """
    counts = [0] * num_candidates
    for reply in replies:
        choice = vote(reply, reading=reading)
        if choice is not None and 1 <= choice <= num_candidates:
            counts[choice - 1] += 1
    return counts


def vote(reply: str, *, reading: Reading = "corrected") -> int | None:
    """The number a voter chose, from 1; None = it named none."""
    number = _last_integer(reply, CHOICE)
    if number is None:
        return None
    if reading == "as_published":
        return int(number[-1])
    return int(number) if len(number) <= _MOST_DIGITS else None


def label_value(
    replies: Sequence[str], *, worth: Mapping[str, float] = LABELS, reading: Reading = "corrected"
) -> float | None:
    """Sum of the values of the labels on the replies' last lines; an unknown label has no value.

    The published reading returns 0 if no label is known, and knows only labels without space, capitals or a full stop.
    """
    labels = [_label(reply, reading) for reply in replies]
    if reading == "corrected" and not any(label in worth for label in labels):
        return None
    return sum(value * labels.count(label) for label, value in worth.items())


def tenths(reply: str, *, reading: Reading = "corrected") -> float | None:
    """A score from 1 to 10, divided by 10.

    The corrected reading takes the last integer after the first "score is", and None if it is out of range. The
    published reading looks for "10" anywhere in the text, then for "9" and so on down, and returns -1 if there is none.
    """
    if reading == "as_published":
        return next((score / 10 for score in range(10, 0, -1) if str(score) in reply), -1.0)
    number = _last_integer(reply, SCORE)
    return int(number) / 10 if number is not None and len(number) <= 2 and 1 <= int(number) <= 10 else None


def _last_integer(reply: str, behind: str) -> str | None:
    """The last run of digits after the first `behind`."""
    _, found, rest = reply.partition(behind)
    numbers = _INTEGER.findall(rest) if found else []
    return numbers[-1] if numbers else None


def _label(reply: str, reading: Reading) -> str:
    if reading == "as_published":
        return reply.rsplit("\n", maxsplit=1)[-1]
    lines = reply.strip().splitlines()
    return lines[-1].strip().rstrip(".").casefold() if lines else ""
