"""Judge: branches -> scores. Only a judge marked `is_oracle` receives the problem's secret.

A judge that samples asks only models of the run. Their replies become nodes that quote what is judged. The replies are
billed to the command under the role `judge`, recorded like any growth, and never asked for again when a run is resumed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from ramify.core.action import ActionConfig
from ramify.core.branch import Branch
from ramify.core.problem import Problem
from ramify.core.quick_init import quick_init


@quick_init
@dataclass(frozen=True, slots=True)
class Verdict:
    """A judge's result for one branch: a value, and the named parts it is made of."""

    value: float | None
    """None = no score: a failed parse is not 0."""
    parts: Mapping[str, float] = field(default_factory=dict[str, float])


class BranchJudge(Protocol):
    """Scores branches of one problem, one or several at once."""

    @property
    def name(self) -> str: ...

    @property
    def is_oracle(self) -> bool:
        """Whether it needs the secret. Every figure that used it says so."""
        ...

    async def judge(self, branches: Sequence[Branch], problem: Problem) -> Sequence[Verdict]:
        """One verdict per branch, in order. Raises `JudgeError` for a fault."""
        ...


@runtime_checkable
class Punctual(Protocol):
    """A judge that keeps its own deadline, so nobody else sets one for it."""

    @property
    def deadline_s(self) -> float: ...


@runtime_checkable
class Closable(Protocol):
    """A judge that holds connections or processes."""

    async def close(self) -> None:
        """Release them. May be called repeatedly; a later judgement opens them again."""
        ...


@dataclass(frozen=True, slots=True)
class Sitting:
    """The most that a sampling judge asks for to judge a given number of nodes at once."""

    num_dialogues: int
    num_replies: int
    """Per dialogue."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A model's reply to a judge."""

    text: str
    """The text as the run's format reads answers: the text between its answer tags, if it has any, without thinking."""
    is_cut: bool = False
    """Whether a limit ended the reply, so it is incomplete."""


class Dialogue(Protocol):
    """A judge's conversation with a model of the run, one question after another. Each reply becomes a node."""

    async def open(self, contexts: Sequence[Branch]) -> Reply:
        """The reply to the judge's template, filled with what it cites of `contexts`, in a fresh context.

        Raises `JudgeError` if the model gives no reply.
        """
        ...

    async def correct(self, fault: str) -> Reply:
        """The next reply in the same context, after telling the model what was wrong with the previous one. Raises
        `JudgeError` if there is no room for another."""
        ...


@runtime_checkable
class SamplingJudge(Protocol):
    """A judge that asks a model. Its `action` names the entry of the run's actions that says which model and how."""

    @property
    def name(self) -> str: ...

    @property
    def is_oracle(self) -> bool: ...

    @property
    def action(self) -> str: ...

    @property
    def default_action(self) -> ActionConfig:
        """The action to use in a run that has no action of that name."""
        ...

    def check(self, action: ActionConfig) -> None:
        """Raise `ConfigError` for an action that the judge cannot use."""
        ...

    def sitting(self, num_nodes: int) -> Sitting:
        """The most that it asks for to judge this many nodes."""
        ...

    async def judge_by(
        self, dialogue: Dialogue, nodes: Sequence[Sequence[Branch]], problem: Problem
    ) -> Sequence[Verdict]:
        """One verdict per node, in order. A node is given as its contexts: one branch for each fresh context on the way
        to it; the last one is its own. Raises `JudgeError` for a fault."""
        ...
