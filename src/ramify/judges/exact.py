"""Exact: compares the answer that a format reads from a branch with the gold answer. An oracle.

Two answers are the same if they are equal after ignoring case, outer space and runs of space, or if both are the same
decimal number (`1,000` is `1000.0`). A list of gold answers is a list of alternatives. Text outside the answer is not
used.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

from ramify.core.branch import Branch
from ramify.core.errors import JudgeError
from ramify.core.format import Format, IsSame
from ramify.core.judge import Verdict
from ramify.core.problem import Problem

ANSWER: Final = "answer"
"""Key of the gold answer among a problem's secrets."""

_NUMBER = re.compile(r"[-+]?([0-9]{1,3}(,[0-9]{3})+|[0-9]{1,40})(\.[0-9]{1,40})?")


@dataclass(frozen=True, slots=True)
class Exact:
    """1.0 for the gold answer, 0.0 for another answer or none; parts `answered` and `correct`."""

    format: Format
    name: str = "exact"
    is_oracle: bool = True
    """Whether the judge counts as one that saw the gold answer."""
    is_same: IsSame | None = None
    """Whether two answers mean the same; None = `is_same_answer`."""

    async def judge(self, branches: Sequence[Branch], problem: Problem) -> Sequence[Verdict]:
        """One verdict per branch. Raises `JudgeError` if the problem has no gold answer."""
        if ANSWER not in problem.secret:
            raise JudgeError(f"problem {problem.uid!r} has no secret {ANSWER!r}; map its column: data.answer = ...")
        return [self._verdict(branch, gold_answers(problem.secret[ANSWER])) for branch in branches]

    def _verdict(self, branch: Branch, gold: Iterable[str]) -> Verdict:
        answer = self.format.answer(branch.said)
        is_correct = answer is not None and any((self.is_same or is_same_answer)(answer, one) for one in gold)
        return Verdict(float(is_correct), {"answered": float(answer is not None), "correct": float(is_correct)})


def gold_answers(gold: object) -> list[str]:
    """The alternatives of a gold answer, as text."""
    return [str(one) for one in gold] if isinstance(gold, list | tuple) else [str(gold)]


def is_same_answer(one: str, other: str) -> bool:
    """Whether two answers are the same text, or the same number."""
    one, other = normalised(one), normalised(other)
    if one == other:
        return True
    return bool(_NUMBER.fullmatch(one) and _NUMBER.fullmatch(other)) and _decimal(one) == _decimal(other)


def normalised(answer: str) -> str:
    """The answer without case, outer space and runs of space."""
    return " ".join(answer.casefold().split())


def _decimal(number: str) -> Decimal:
    return Decimal(number.replace(",", ""))
