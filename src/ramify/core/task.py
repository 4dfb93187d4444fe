"""Task: where problems come from, how agents speak about them, with which tools, and who judges.

A task owns no model and no strategy: any strategy runs on any task.
"""

from collections.abc import Sequence
from typing import Protocol

from ramify.core.branch import Branch
from ramify.core.format import Format
from ramify.core.judge import BranchJudge
from ramify.core.problem import Problem
from ramify.core.tool import Tool


class Task(Protocol):
    """Built as `Task(**options)`."""

    @property
    def format(self) -> Format: ...

    @property
    def tools(self) -> Sequence[Tool]: ...

    @property
    def judges(self) -> Sequence[BranchJudge]:
        """Judges of leaves. The value of the last judge is the reward."""
        ...

    def problems(self, split: str, num_problems: int, seed: int) -> Sequence[Problem]:
        """`num_problems` problems of one split, with distinct uids. Raises `ConfigError` if the split has too few."""
        ...

    def prune(self, branch: Branch) -> str | None:
        """Reason to prune a path, based on what its tools showed; None = go on."""
        ...

    def is_same_answer(self, one: str, other: str) -> bool:
        """Whether two answers mean the same. Votes are counted with it."""
        ...
