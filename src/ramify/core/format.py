"""Format: how a kind of agent speaks. Pure text.

A format reads the whole run of sampled tokens since the last token that was not sampled, never a single node. So it
still finds a tag that the end of a segment or a fork cut in two.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from ramify.core.branch import Branch
from ramify.core.codec import Codec
from ramify.core.problem import Problem
from ramify.core.quick_init import quick_init
from ramify.core.tool import ToolResult

IsSame = Callable[[str, str], bool]
"""Whether two answers mean the same."""


@quick_init
@dataclass(frozen=True, slots=True)
class ToolAction:
    """The model asked for a tool. `arguments` is the text between the tags, stripped; '' = the tag was empty."""

    tool: str
    arguments: str


@dataclass(frozen=True, slots=True)
class TurnAction:
    """The model's turn held no call and no answer, and an environment answers every turn. `text` is the turn, without
    thinking and end markers."""

    text: str


@dataclass(frozen=True, slots=True)
class AnswerAction:
    """The model gave its answer."""

    text: str


@dataclass(frozen=True, slots=True)
class InvalidAction:
    """The model tried to act, but its action could not be understood. `reason` goes into the observation and the
    log."""

    reason: str


Action = ToolAction | TurnAction | AnswerAction | InvalidAction


@quick_init
@dataclass(frozen=True, slots=True)
class Span:
    """A part of a rendered context. Control tokens may be spelt in trusted spans only, so a question, a tool's text or
    the model's own words can never forge one."""

    text: str
    is_trusted: bool = False
    message: Mapping[str, Any] | None = None
    """The whole chat message that this span renders, for engines that take messages. Such a span becomes a segment of
    its own. None = the span is text only."""


def span_ids(codec: Codec, spans: str | Sequence[Span]) -> list[int]:
    """Ids of a rendered text. The text is encoded as a whole, but only trusted spans may produce control tokens. A
    plain string is not trusted.

    The text between two control tokens is encoded in one piece, so span borders do not affect the ids.
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
    """Renders contexts and observations, and reads actions."""

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
        """The observation that answers an action, with everything up to where the model continues. A plain string is
        not trusted."""
        ...

    def answer(self, said: str) -> str | None:
        """The final answer in the model's own words (`Branch.said`), all of it in one turn; None = none was given."""
        ...

    def tools(self) -> Mapping[str, str]:
        """Tool name -> the tag or function name the model calls it by."""
        ...


@runtime_checkable
class MessageFormat(Format, Protocol):
    """A format whose contexts are chat messages, for engines without token ids: each span it writes carries its
    message.

    The engine's words are read from its message, not from the rendered text, and are sent back unchanged.
    """

    @property
    def schemas(self) -> tuple[Mapping[str, Any], ...]:
        """Functions that the engine should offer to the model; empty = calls are text."""
        ...

    def hear(self, message: Mapping[str, Any]) -> Action | None:
        """The action at the end of a message of the model; None = there is none."""
        ...

    def reply(self, message: Mapping[str, Any], action: Action, result: ToolResult) -> Sequence[Span]:
        """The messages that answer an action of `message`; they answer every call in it."""
        ...


@runtime_checkable
class TurnFormat(Format, Protocol):
    """A format whose whole turns an environment can answer. Its `observe` writes the answer to a `TurnAction` as the
    user's next turn."""

    def turn(self, run: str) -> str | None:
        """The words of a whole turn, without thinking and end markers; None = there are none."""
        ...


@runtime_checkable
class SystemFormat(Format, Protocol):
    """A format whose contexts may begin with a system message, which an action may replace."""

    def with_system(self, system: str) -> "Format":
        """This format with another system message; '' = none. Raises `ConfigError` if it cannot write it."""
        ...


@runtime_checkable
class GivingUp(Protocol):
    """A format that stops paths early, using what it knows of its steps."""

    def give_up(self, branch: Branch) -> str | None:
        """The reason to end the path after its last step, like the reason of a prune rule; None = the path goes on."""
        ...


@runtime_checkable
class Equating(Protocol):
    """A format that may decide itself which answers mean the same."""

    @property
    def is_same_answer(self) -> IsSame | None:
        """None = the task decides."""
        ...
