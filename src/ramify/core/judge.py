"""Judge: branches -> scores. Only a judge marked `is_oracle` is handed the problem's secret.

A judge that samples asks models of the run and no others: what they say becomes nodes that quote what is judged, billed
to the command under the role `judge`, recorded like any growth and never asked for again when a run is resumed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from ramify.core.action import ActionConfig
from ramify.core.branch import Branch
from ramify.core.problem import Problem


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a judge says of one branch: a value, and the named parts it is made of."""

    value: float | None
    """None = no score: a failed parse is not 0."""
    parts: Mapping[str, float] = field(default_factory=dict[str, float])


class BranchJudge(Protocol):
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


@runtime_checkable
class Punctual(Protocol):
    """A judge that keeps a deadline of its own: nobody puts another one around it."""

    @property
    def deadline_s(self) -> float: ...


@runtime_checkable
class Closable(Protocol):
    """A judge that holds connections or processes."""

    async def close(self) -> None:
        """Let go of them. Harmless when repeated; a later judgement opens them again."""
        ...


@dataclass(frozen=True, slots=True)
class Sitting:
    """What a judge that samples may ask for when it judges so many nodes at once, at most."""

    num_dialogues: int
    num_replies: int
    """Of each dialogue."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What a model said to a judge."""

    text: str
    """As the run's format reads answers: what stands between its answer tags, where there are any, without thinking."""
    is_cut: bool = False
    """Whether a limit ended it: what it says is not all it was to say."""


class Dialogue(Protocol):
    """A model of the run, asked by a judge. One question after the other; each reply is a node."""

    async def open(self, contexts: Sequence[Branch]) -> Reply:
        """The reply to the judge's template around what it cites of `contexts`, in a fresh context.

        Raises `JudgeError` where the model gives none.
        """
        ...

    async def correct(self, fault: str) -> Reply:
        """The next reply of the same context, after the model was told what was wrong with the one before. Raises
        `JudgeError` where there is no room for another."""
        ...


@runtime_checkable
class SamplingJudge(Protocol):
    """A judge that asks a model. Its `action` names the entry of the run's actions that says which and how."""

    @property
    def name(self) -> str: ...

    @property
    def is_oracle(self) -> bool: ...

    @property
    def action(self) -> str: ...

    @property
    def default_action(self) -> ActionConfig:
        """What `action` stands for in a run that has no such action."""
        ...

    def check(self, action: ActionConfig) -> None:
        """Raise `ConfigError` for an action that it cannot ask by."""
        ...

    def sitting(self, num_nodes: int) -> Sitting:
        """What it asks for at most to judge so many nodes."""
        ...

    async def judge_by(
        self, dialogue: Dialogue, nodes: Sequence[Sequence[Branch]], problem: Problem
    ) -> Sequence[Verdict]:
        """One verdict a node, in order. A node is its contexts: one branch for every fresh context on the way to it,
        the last one its own. Raises `JudgeError` for a fault."""
        ...
