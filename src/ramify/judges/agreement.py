"""Agreement: which answers mean the same, as numbers, for strategies that stop when enough answers agree.

It sees no gold answer and asks no model. Of the branches that it judges at once, each is scored by the number of the
first whose answer means the same, from 0; a branch without an answer has no score.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ramify.core.branch import Branch
from ramify.core.format import Format, IsSame
from ramify.core.judge import Verdict
from ramify.core.problem import Problem
from ramify.judges.exact import is_same_answer


@dataclass(frozen=True, slots=True)
class Agreement:
    """Compares answers as votes do."""

    format: Format
    name: str = "agreement"
    is_oracle: bool = False
    """Whether the judge counts as one that saw the gold answer."""
    is_same: IsSame | None = None
    """Whether two answers mean the same; None = `is_same_answer`."""

    async def judge(self, branches: Sequence[Branch], problem: Problem) -> Sequence[Verdict]:
        """One verdict per branch: the number of the first branch with the same answer; None = it has no answer."""
        is_same = self.is_same or is_same_answer
        firsts: list[tuple[int, str]] = []
        verdicts: list[Verdict] = []
        for number, branch in enumerate(branches):
            answer = self.format.answer(branch.said)
            if answer is None:
                verdicts.append(Verdict(None))
                continue
            found = next((first for first, other in firsts if is_same(other, answer)), number)
            if found == number:
                firsts.append((number, answer))
            verdicts.append(Verdict(float(found)))
        return verdicts
