"""Format: how a kind of agent speaks. Pure text.

A format reads the run since the last token nobody sampled, never one node, so that a tag cut by a segment's end or a
fork is still found.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from ramify.core.branch import Branch
from ramify.core.codec import Codec
from ramify.core.problem import Problem
from ramify.core.tool import ToolResult

IsSame = Callable[[str, str], bool]
"""Whether two answers mean the same."""


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
    message: Mapping[str, Any] | None = None
    """The chat message that this span renders, whole, for engines that take messages; such a span is a segment of its
    own. None = it is text alone."""


def span_ids(codec: Codec, spans: str | Sequence[Span]) -> list[int]:
    """Ids of a rendered text: those of the whole of it, but that only a trusted span makes a control token. Text alone
    is not trusted.

    What stands between two control tokens is encoded in one piece, so that the borders of spans leave no trace in it.
    """
    ids: list[int] = []
    plain = ""
    for span in [Span(spans)] if isinstance(spans, str) else spans:
        rest = span.text
        for token_id, spelling in controls(codec, rest) if span.is_trusted else ():
            before, _, rest = rest.partition(spelling)
            ids += [*codec.encode(plain + before), token_id]
            plain = ""
        plain += rest
    return ids + codec.encode(plain)


def controls(codec: Codec, text: str) -> list[tuple[int, str]]:
    """(id, spelling) of every control token that `text` spells, in order."""
    trusted = codec.encode(text, allow_special=True)
    spellings = {i: codec.decode([i]) for i in set(trusted).difference(codec.encode(text))}
    special = {i: s for i, s in spellings.items() if codec.encode(s, allow_special=True) == [i] != codec.encode(s)}
    return [(i, special[i]) for i in trusted if i in special]


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

    def observe(self, action: Action, result: ToolResult) -> str | Sequence[Span]:
        """The observation that answers an action, with everything up to where the model goes on. Text alone is not
        trusted."""
        ...

    def answer(self, response: str) -> str | None:
        """The final answer in a whole response; None = none was given."""
        ...

    def tools(self) -> Mapping[str, str]:
        """Tool name -> the tag or function name the model calls it by."""
        ...


@runtime_checkable
class MessageFormat(Format, Protocol):
    """A format whose contexts are chat messages, for engines without token ids: every span it writes has its message.

    What an engine said is read from its message, not from the text that renders it, and goes back as it came.
    """

    @property
    def schemas(self) -> tuple[Mapping[str, Any], ...]:
        """The functions that the engine is to offer the model; empty = calls are text."""
        ...

    def hear(self, message: Mapping[str, Any]) -> Action | None:
        """The action that ends a message of the model; None = there is none."""
        ...

    def reply(self, message: Mapping[str, Any], action: Action, result: ToolResult) -> Sequence[Span]:
        """The messages that answer an action of `message`, every call in it included."""
        ...


@runtime_checkable
class GivingUp(Protocol):
    """A format that gives paths up by what it knows of its steps."""

    def give_up(self, branch: Branch) -> str | None:
        """Why the path ends behind its last step, as a prune rule says it; None = it goes on."""
        ...


@runtime_checkable
class Equating(Protocol):
    """A format that may say itself which answers mean the same."""

    @property
    def is_same_answer(self) -> IsSame | None:
        """None = that is the task's to say."""
        ...
