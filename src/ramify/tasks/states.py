"""The task `states`: a search over the states that a user's functions make (`ramify.search`).

It has one problem, no tools, and a judge that says what the functions said of their states.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ramify.core.branch import Branch
from ramify.core.format import Format
from ramify.core.judge import BranchJudge, Verdict
from ramify.core.problem import Problem
from ramify.core.tool import Tool
from ramify.formats.states import SCORE, StateMessages

JUDGE: Final = "score"
"""Name of the judge of states."""
QUESTION: Final = "search"


@dataclass(frozen=True, slots=True)
class StateJudge:
    """The score that the function gave the last state of a path. It reads the state's message, never its text."""

    name: str = JUDGE
    is_oracle: bool = False

    async def judge(self, branches: Sequence[Branch], problem: Problem) -> Sequence[Verdict]:
        return [_verdict(branch) for branch in branches]


def _verdict(branch: Branch) -> Verdict:
    last = branch.pieces[-1].segment
    return Verdict(last.message.get(SCORE) if last.is_sampled and last.message is not None else None)


class StateTask:
    """A search over states.

    - `question`: how the search is called in reports and drawings.
    """

    def __init__(self, question: str = QUESTION) -> None:
        self.question = question
        self.format: Format = StateMessages()
        self.tools: Sequence[Tool] = ()
        self.judges: Sequence[BranchJudge] = (StateJudge(),)

    def problems(self, split: str, num_problems: int, seed: int) -> Sequence[Problem]:
        return [Problem("search", self.question)]

    def prune(self, branch: Branch) -> str | None:
        return None

    def is_same_answer(self, one: str, other: str) -> bool:
        return one.strip() == other.strip()
