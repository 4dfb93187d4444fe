"""Judge: branches -> scores. Only a judge marked `is_oracle` is handed the problem's secret."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ramify.core.branch import Branch
from ramify.core.problem import Problem


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a judge says of one branch: a value, and the named parts it is made of."""

    value: float | None
    """None = no score: a failed parse is not 0."""
    parts: Mapping[str, float] = field(default_factory=dict[str, float])


class Judge(Protocol):
    """Score branches of one problem, one or several at once."""

    @property
    def name(self) -> str: ...

    @property
    def is_oracle(self) -> bool:
        """Whether it needs the secret; every figure that used it says so."""
        ...

    async def judge(self, branches: Sequence[Branch], problem: Problem) -> Sequence[Verdict]:
        """One verdict a branch, in order. Raises `JudgeError` for a fault."""
        ...
