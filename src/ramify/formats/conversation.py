"""The `conversation` format: a conversation that somebody else began, for engines that take chat messages.

A problem's public column `messages` is its opening: the messages go to the engine exactly as they are. The model's
message is the answer, whole; a call of a tool is an answer too, because whoever began the conversation makes the call.
Nothing is said about how to answer, so votes compare what the answers say (`answer_keys`).

Critiques, rewrites and grades are requests of their own: one message of the user, which quotes the conversation. A
conversation of one message is quoted by its words alone, any other by all its messages, each under its role.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Final

from ramify.core.branch import Branch, turns_of
from ramify.core.errors import ConfigError
from ramify.core.format import Action, AnswerAction, IsSame, Span
from ramify.core.problem import Problem
from ramify.core.tool import ToolResult
from ramify.formats.answer_keys import answer_key, is_same_key
from ramify.formats.messages import messages_of, rendered, tool_calls
from ramify.formats.tags import quoted, response_of
from ramify.formats.thoughts import without_thoughts

CRITIQUE: Final = """\
Here are a request and somebody's answer to it. Say what is wrong with the answer and what is missing: claims that do \
not hold, steps that do not follow, slips, wishes of the request that it overlooks. Name the place each time and say \
how it could be put right. Do not answer the request yourself.

Request:
{question}

Answer:
{answer}"""
REWRITE: Final = """\
Here are a request, somebody's answer to it and a critique of that answer. Write a better answer: take up what the \
critique is right about, and check anew whatever you keep. Keep to everything that the request asks for, its form \
included. Write all of the answer from the beginning, and nothing about the earlier one.

Request:
{question}

Answer:
{answer}

Critique:
{critique}"""
REFINE: Final = """\
Here are a request and somebody's answer to it, which may be wrong. Write a better answer: keep what holds, put right \
what does not. Keep to everything that the request asks for, its form included. Write all of the answer from the \
beginning, and nothing about the earlier one.

Request:
{question}

Answer:
{answer}"""
GRADE: Final = """\
Here are a request and somebody's answer to it. Grade the answer, as strictly as you can: every flaw costs points, and \
even an answer without any visible flaw gets 95 at most. A grade is a whole number from -100 for an answer that is all \
wrong to 100. Reply with the grade and nothing else.

Request:
{question}

Answer:
{answer}"""
ACTIONS: Final[Mapping[str, Mapping[str, str]]] = MappingProxyType(
    {
        "critique": {"edge": "quotes", "role": "critique", "template": CRITIQUE},
        "rewrite": {"edge": "quotes", "template": REWRITE},
        "refine": {"edge": "quotes", "template": REFINE},
        "grade": {"edge": "quotes", "role": "judge", "template": GRADE},
        "dummy": {"text": "I don't know."},
    }
)
"""Default actions of a run in this format; a run may override each field."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """Speaks in the messages that it is given. Raises `ConfigError` for a pattern that is none."""

    actions: ClassVar[Mapping[str, Mapping[str, str]]] = ACTIONS

    answer_pattern: str | None = None
    """Regular expression for what an answer says, for votes: the first group of its last match, or the whole match.
    None, and where nothing matches = as `answer_keys` reads it."""

    def __post_init__(self) -> None:
        try:
            re.compile(self.answer_pattern or "")
        except re.error as error:
            raise ConfigError(
                f"answer_pattern = {self.answer_pattern!r} is no regular expression: {error}; write one such as "
                "'answer is (.+)'"
            ) from None

    @property
    def stops(self) -> tuple[str, ...]:
        """Empty: the server ends a turn."""
        return ()

    @property
    def schemas(self) -> tuple[Mapping[str, Any], ...]:
        """Empty: the tools of a conversation belong to whoever began it, and are fields of the action."""
        return ()

    @property
    def is_same_answer(self) -> IsSame:
        """Whether two answers say the same."""
        return is_same_key if self.answer_pattern is None else self._is_same

    def open(self, problem: Problem) -> Sequence[Span]:
        """The messages of the problem; its question as one message of the user if it has none."""
        return [Span(f"{_shown(message)}\n\n", message=message) for message in messages_of(problem)]

    def quote(self, template: str, contexts: Sequence[Branch], problem: Problem) -> Sequence[Span]:
        """One message of the user that cites like `TagFormat.quote`: `{question}` is the conversation, and an answer is
        cited without its thoughts."""
        cited = quoted(template, contexts, transcript(problem), answer=self.answer, said=_said)
        return [_message("".join(span.text for span in cited).strip())]

    def read(self, run: str) -> Action | None:
        """Nothing: the model's message is read."""
        return None

    def hear(self, message: Mapping[str, Any]) -> Action | None:
        """A call is an answer; any other message ends by itself."""
        return AnswerAction(rendered(message)) if tool_calls(message) else None

    def observe(self, action: Action, result: ToolResult) -> Sequence[Span]:
        """Tells a model that should continue what was wrong. There is no tool result."""
        return [_message(result.text)]

    def reply(self, message: Mapping[str, Any], action: Action, result: ToolResult) -> Sequence[Span]:
        """Like `observe`."""
        return self.observe(action, result)

    def answer(self, said: str) -> str | None:
        """The last message without its thinking; None = it is empty."""
        return without_thoughts(turns_of(said)[-1]).strip() or None

    def tools(self) -> Mapping[str, str]:
        return {}

    def _is_same(self, one: str, other: str) -> bool:
        return self._key(one) == self._key(other)

    def _key(self, text: str) -> str:
        found = [match[match.re.groups and 1] or "" for match in re.finditer(self.answer_pattern or "", text)]
        return answer_key(found[-1].strip() if found else text)


def transcript(problem: Problem) -> str:
    """The conversation as a text to quote: the words of its only message, or each message under its role."""
    messages = messages_of(problem)
    return rendered(messages[0]) if len(messages) == 1 else "\n\n".join(map(_shown, messages))


def _shown(message: Mapping[str, Any]) -> str:
    return f"[{message.get('role')}]\n{rendered(message)}"


def _said(context: Branch) -> str:
    """A context's response in the form in which it is quoted."""
    return without_thoughts(response_of(context)).strip()


def _message(content: str) -> Span:
    return Span(f"{content}\n\n", message={"role": "user", "content": content})
