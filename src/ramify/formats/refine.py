r"""The `refine` format: answers, critiques, rewrites and grades as requests of their own (MCTSr, arXiv 2406.07394).

An answer is a whole response. A critique quotes it, a rewrite quotes both, a grade quotes an answer: each is a fresh
context whose words are its action's template, so that another type of problem is another TOML file, and another model
or base URL by kind is another engine of the action. The same words go to engines that take tokens, inside `frame`, and
as one message of the user to engines that take messages. What a template lacks or does not know is said before the
start.

The roles are those of BrendanGraham14/mcts-llm and trotsky1997/MathBlackBox; the words are ours.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar, Final, Literal

from ramify.core.branch import Branch
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
DUMMY: Final = "I don't know."
"""The answer that a search begins from where it asks for none (mcts-llm)."""

ACTIONS: Final[Mapping[str, Mapping[str, str]]] = MappingProxyType(
    {
        "critique": {"edge": "quotes", "role": "critique", "template": CRITIQUE},
        "rewrite": {"edge": "quotes", "template": REWRITE},
        "grade": {"edge": "quotes", "role": "judge", "template": GRADE},
        "dummy": {"text": DUMMY},
    }
)
"""Actions of a run in this format that does not describe them otherwise, field by field."""
NEEDS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "critique": ("question", "answer"),
        "rewrite": ("question", "answer", "critique"),
        "grade": ("question", "answer"),
    }
)
"""What the templates of these actions must cite; those of others may cite what they like."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refine:
    """Speaks in whole answers. Raises `ConfigError` for options that make no sense."""

    actions: ClassVar[Mapping[str, Mapping[str, str]]] = ACTIONS

    template: str = OPENING
    """Words that ask for the first answer."""
    frame: str = "<|user|>{prompt}<|end|><|assistant|>"
    """What stands around the words of every request, for engines that take tokens; control tokens may be spelt in it.
    `{prompt}` alone for models that know no turns."""
    system: str = ""
    """The system message, for engines that take messages; '' = there is none."""
    answer_pattern: str | None = None
    r"""Regular expression of the final answer, whose last match counts: its first group, or all of it. None = what the
    last `\boxed{…}` holds."""
    end: tuple[str, ...] = ()
    """Stop words that end a response, for models that do not end it themselves; they are no part of it."""
    needs: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    """Action -> what its template must cite by name, where it differs from `NEEDS`. One that cites contexts by their
    numbers is taken at its word."""
    speaks: Literal["tokens", "messages"] = "tokens"
    """What the engines take; the run sets it."""

    def __post_init__(self) -> None:
        if set(placeholders(self.template)) != {"question"}:
            raise ConfigError(f"template = {self.template!r}: it must cite {{question}} and nothing else")
        if placeholders(self.frame) != ["prompt"]:
            raise ConfigError(f"frame = {self.frame!r}: it must cite {{prompt}} once and nothing else")
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
        """Raise `ConfigError` unless an action's template cites what is known and what its kind needs."""
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

    @property
    def stops(self) -> tuple[str, ...]:
        return self.end

    @property
    def schemas(self) -> tuple[Mapping[str, Any], ...]:
        """None: no tool is called."""
        return ()

    def open(self, problem: Problem) -> Sequence[Span]:
        """The request for the first answer."""
        return self._asked(spans_of(self.template, {"question": problem.question}))

    def quote(self, template: str, contexts: Sequence[Branch], problem: Problem) -> Sequence[Span]:
        """The request of a fresh context. It cites as `TagFormat.quote` does, but that `{answer}` is the last whole
        answer above, whatever can be read from it, and that thoughts are left out."""
        return self._asked(quoted(template, contexts, problem.question, answer=str, said=self._said))

    def read(self, run: str) -> Action | None:
        """All that was said, once a stop word has ended it."""
        ends = [place for word in self.end if (place := run.find(word)) >= 0]
        return AnswerAction(run[: min(ends)].strip()) if ends else None

    def hear(self, message: Mapping[str, Any]) -> Action | None:
        """As `read`."""
        return self.read(text_of(message))

    def observe(self, action: Action, result: ToolResult) -> Sequence[Span]:
        """What was wrong, to a model that is to go on: there is no tool to hear of."""
        if self.speaks == "messages":
            return [_message("user", result.text)]
        return self._asked([Span(result.text)])

    def reply(self, message: Mapping[str, Any], action: Action, result: ToolResult) -> Sequence[Span]:
        """As `observe`."""
        return self.observe(action, result)

    def answer(self, response: str) -> str | None:
        """The final answer in a response, behind its thoughts; None = there is none."""
        said = without_thoughts(response)
        if self.answer_pattern is None:
            return boxed(said)
        found = [match[match.re.groups and 1] or "" for match in re.finditer(self.answer_pattern, said)]
        return (found[-1].strip() or None) if found else None

    def tools(self) -> Mapping[str, str]:
        return {}

    def _asked(self, words: Sequence[Span]) -> list[Span]:
        """A request in these words."""
        if self.speaks == "messages":
            system = [_message("system", self.system)] if self.system else []
            return [*system, _message("user", "".join(span.text for span in words))]
        spans: list[Span] = []
        for span in spans_of(self.frame, {"prompt": ""}):
            spans.extend([span] if span.is_trusted else words)
        return spans

    def _said(self, context: Branch) -> str:
        """A context's response as it is quoted."""
        text = without_thoughts(response_of(context))
        ends = [place for word in self.end if (place := text.find(word)) >= 0]
        return text[: min(ends, default=len(text))].strip()


def _message(role: str, content: str) -> Span:
    return Span(f"{content}\n\n", message={"role": role, "content": content})
