"""Format: how a kind of agent speaks. Pure text.

A format reads the run since the last token nobody sampled, never one node, so that a tag cut by a segment's end or a
fork is still found.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from ramify.core.branch import Branch
from ramify.core.problem import Problem
from ramify.core.tool import ToolResult


@dataclass(frozen=True, slots=True)
class ToolAction:
    """The model asked for a tool. `arguments` is the text between the tags, stripped; '' = the tag was empty."""

    tool: str
    arguments: str


@dataclass(frozen=True, slots=True)
class AnswerAction:
    """The model gave its answer."""

    text: str


@dataclass(frozen=True, slots=True)
class InvalidAction:
    """The model tried to act and could not be understood; `reason` is for the observation and the log."""

    reason: str


Action = ToolAction | AnswerAction | InvalidAction


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of a rendered context. Only in a trusted span may control tokens be spelt: a question, a tool's text
    or a model's own words can never forge one."""

    text: str
    is_trusted: bool = False


class Format(Protocol):
    """Render contexts and observations, read actions."""

    @property
    def stops(self) -> tuple[str, ...]:
        """Stop words that end a step."""
        ...

    def open(self, problem: Problem) -> Sequence[Span]:
        """Opening context of a tree."""
        ...

    def quote(self, template: str, contexts: Sequence[Branch], problem: Problem) -> Sequence[Span]:
        """Opening of a fresh context that quotes earlier ones (critique, rewrite, grade)."""
        ...

    def read(self, run: str) -> Action | None:
        """The action at the end of `run`, the text sampled since the last observation; None = there is none."""
        ...

    def observe(self, action: Action, result: ToolResult) -> str:
        """The observation that answers an action."""
        ...

    def answer(self, response: str) -> str | None:
        """The final answer in a whole response; None = none was given."""
        ...

    def tools(self) -> Mapping[str, str]:
        """Tool name -> the tag or function name the model calls it by."""
        ...
