r"""The `refine` format: answers, critiques, rewrites and grades, each as a separate request (MCTSr, arXiv 2406.07394).

An answer is a whole response. A critique quotes the answer, a rewrite quotes both, and a grade quotes an answer. Each
of them is a fresh context whose words are its action's template. So another type of problem needs only another TOML
file, and another model or base URL for one kind of request needs only another engine in that action. Engines that take
tokens get the words inside `frame`; engines that take messages get the same words as one message of the user. A
template that lacks a citation or cites something unknown raises an error before the start.

The roles are those of BrendanGraham14/mcts-llm and trotsky1997/MathBlackBox; the words are ours.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, ClassVar, Final, Literal

from ramify.core.branch import Branch, turns_of
from ramify.core.errors import ConfigError
from ramify.core.format import Action, AnswerAction, Span
from ramify.core.problem import Problem
from ramify.core.tool import ToolResult
from ramify.formats.boxed import boxed
from ramify.formats.messages import text_of
from ramify.formats.tags import check_quote, placeholders, quoted, response_of, spans_of
from ramify.formats.thoughts import without_thoughts

OPENING: Final = """\
Solve the problem. Work step by step, check what you find, and write the final answer last, as \\boxed{{...}}.

Problem:
{question}"""
CRITIQUE: Final = """\
Here are a problem and somebody's answer to it. Say what is wrong with the answer and what is missing: steps that do \
not follow, slips in arithmetic, cases left out, claims without a reason, a result that does not fit the question. \
Name the place each time and say how it could be put right. Do not answer the problem yourself.

Problem:
{question}

Answer:
{answer}"""
REWRITE: Final = """\
Here are a problem, somebody's answer to it and a critique of that answer. Write a better answer: take up what the \
critique is right about, and check anew whatever you keep. Write all of it from the beginning, so that it can be read \
by itself, and the final answer last, as \\boxed{{...}}.

Problem:
{question}

Answer:
{answer}

Critique:
{critique}"""
GRADE: Final = """\
Here are a problem and somebody's answer to it. Grade the answer, as strictly as you can: every flaw costs points, and \
even an answer without any visible flaw gets 95 at most. A grade is a whole number from -100 for an answer that is all \
wrong to 100. Reply with the grade and nothing else.

Problem:
{question}

Answer:
{answer}"""
FRAME: Final = "<|user|>{prompt}<|end|><|assistant|>"
SYSTEM_FRAME: Final = "<|system|>{system}<|end|>"
DUMMY: Final = "I don't know."
"""The first answer of a search that does not ask the model for one (mcts-llm)."""

ACTIONS: Final[Mapping[str, Mapping[str, str]]] = MappingProxyType(
    {
        "critique": {"edge": "quotes", "role": "critique", "template": CRITIQUE},
        "rewrite": {"edge": "quotes", "template": REWRITE},
        "grade": {"edge": "quotes", "role": "judge", "template": GRADE},
        "dummy": {"text": DUMMY},
    }
)
"""Default actions of a run in this format; a run may override each field."""
NEEDS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "critique": ("question", "answer"),
        "rewrite": ("question", "answer", "critique"),
        "grade": ("question", "answer"),
    }
)
"""What the templates of these actions must cite. Templates of other actions may cite anything known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refine:
    """Speaks in whole answers. Raises `ConfigError` for invalid options."""

    actions: ClassVar[Mapping[str, Mapping[str, str]]] = ACTIONS

    template: str = OPENING
    """The prompt that asks for the first answer."""
    frame: str = FRAME
    """Text around every request, for engines that take tokens. Control tokens may be spelt in it. Use `{prompt}` alone
    for models without turns."""
    system: str = ""
    """The system message of requests whose action has none of its own; '' = no system message."""
    system_frame: str = SYSTEM_FRAME
    """Text around a system message, which stands in front of `frame`. Control tokens may be spelt in both."""
    answer_pattern: str | None = None
    r"""Regular expression for the final answer. The last match counts: its first group, or the whole match. None = the
    content of the last `\boxed{…}`."""
    end: tuple[str, ...] = ()
    """Stop words that end a response, for models that do not end it themselves. They are not part of the response."""
    needs: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    """Action -> what its template must cite by name, if it differs from `NEEDS`. A template that cites contexts by
    number is not checked further."""
    speaks: Literal["tokens", "messages"] = "tokens"
    """What the engines take. The run sets it."""

    def __post_init__(self) -> None:
        if set(placeholders(self.template)) != {"question"}:
            raise ConfigError(f"template = {self.template!r}: it must cite {{question}} and nothing else")
        for name, frame, cited in (("frame", self.frame, "prompt"), ("system_frame", self.system_frame, "system")):
            if placeholders(frame) != [cited]:
                raise ConfigError(f"{name} = {frame!r}: it must cite {{{cited}}} once and nothing else")
        if not all(self.end):
            raise ConfigError(f"end = {self.end!r}: a stop word has characters")
        try:
            re.compile(self.answer_pattern or "")
        except re.error as error:
            raise ConfigError(
                f"answer_pattern = {self.answer_pattern!r} is no regular expression: {error}; write one such as "
                "'answer is (.+)'"
            ) from None

    def check(self, action: str, template: str) -> None:
        """Raise `ConfigError` unless an action's template cites only known names and everything that its kind needs."""
        check_quote(template)
        cited = set(placeholders(template))
        by_number = cited - {"question", "answer", "critique"}
        needed = {**NEEDS, **self.needs}.get(action, ())
        lacking = [name for name in needed if name not in cited and (name == "question" or not by_number)]
        if lacking:
            missing = ", ".join(f"{{{name}}}" for name in lacking)
            raise ConfigError(
                f"actions.{action}.template = {template!r} does not cite {missing}; write it in, or say by "
                f"format_options.needs.{action} what such a template must cite"
            )

    def with_system(self, system: str) -> "Refine":
        """This format with another system message; '' = none. Raises `ConfigError` if its frame is another model's."""
        made = replace(self, system=system)
        made.check_system()
        return made

    def check_system(self) -> None:
        """Raise `ConfigError` for a system message to an engine of tokens if only `frame` is that of its model."""
        is_framed = self.frame == FRAME or self.system_frame != SYSTEM_FRAME
        if self.system and self.speaks == "tokens" and not is_framed:
            raise ConfigError(
                f"the system message {self.system!r:.80} has no frame in the words of frame = {self.frame!r}; write "
                "format_options.system_frame, such as '<|im_start|>system\\n{system}<|im_end|>\\n'"
            )

    @property
    def stops(self) -> tuple[str, ...]:
        return self.end

    @property
    def schemas(self) -> tuple[Mapping[str, Any], ...]:
        """Empty, because this format calls no tools."""
        return ()

    def open(self, problem: Problem) -> Sequence[Span]:
        """The request for the first answer."""
        return [*self._told(), *self._asked(spans_of(self.template, {"question": problem.question}))]

    def quote(self, template: str, contexts: Sequence[Branch], problem: Problem) -> Sequence[Span]:
        """The request of a fresh context. It cites like `TagFormat.quote`, with two differences: `{answer}` is the last
        whole answer above, whether or not a final answer can be read from it, and thoughts are left out."""
        return [*self._told(), *self._asked(quoted(template, contexts, problem.question, answer=str, said=self._said))]

    def read(self, run: str) -> Action | None:
        """The whole response, once a stop word has ended it."""
        ends = [place for word in self.end if (place := run.find(word)) >= 0]
        return AnswerAction(run[: min(ends)].strip()) if ends else None

    def hear(self, message: Mapping[str, Any]) -> Action | None:
        """Like `read`."""
        return self.read(text_of(message))

    def observe(self, action: Action, result: ToolResult) -> Sequence[Span]:
        """Tells a model that should continue what was wrong. There is no tool result."""
        return self._asked([Span(result.text)])

    def reply(self, message: Mapping[str, Any], action: Action, result: ToolResult) -> Sequence[Span]:
        """Like `observe`."""
        return self.observe(action, result)

    def answer(self, said: str) -> str | None:
        """The final answer in a response, after its thoughts; None = there is none."""
        turns = reversed(turns_of(without_thoughts(said)))
        return next((answer for answer in map(self._answer_in, turns) if answer is not None), None)

    def _answer_in(self, turn: str) -> str | None:
        if self.answer_pattern is None:
            return boxed(turn)
        found = [match[match.re.groups and 1] or "" for match in re.finditer(self.answer_pattern, turn)]
        return (found[-1].strip() or None) if found else None

    def tools(self) -> Mapping[str, str]:
        return {}

    def _told(self) -> list[Span]:
        """The system message, if there is one."""
        if not self.system:
            return []
        if self.speaks == "messages":
            return [_message("system", self.system)]
        return [replace(span, is_trusted=True) for span in spans_of(self.system_frame, {"system": self.system})]

    def _asked(self, words: Sequence[Span]) -> list[Span]:
        """A user's turn with these words."""
        if self.speaks == "messages":
            return [_message("user", "".join(span.text for span in words))]
        spans: list[Span] = []
        for span in spans_of(self.frame, {"prompt": ""}):
            spans.extend([span] if span.is_trusted else words)
        return spans

    def _said(self, context: Branch) -> str:
        """A context's response in the form in which it is quoted."""
        text = without_thoughts(response_of(context))
        ends = [place for word in self.end if (place := text.find(word)) >= 0]
        return text[: min(ends, default=len(text))].strip()


def _message(role: str, content: str) -> Span:
    return Span(f"{content}\n\n", message={"role": role, "content": content})
