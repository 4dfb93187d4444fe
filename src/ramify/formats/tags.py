"""TagFormat: agents that act by writing `<tag>…</tag>`. A new tag format is data, not code.

It owns the opening template, the tag of each tool, the observation around a result, and the words for errors. It reads
the run since the last observation, so it also finds a tag that is spread over two requests, segments or nodes. The
templates are trusted spans; a question and a tool's text are not, so they can spell a control token and forge
none.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from string import Formatter
from types import MappingProxyType
from typing import Final

from ramify.core.branch import Branch, turns_of
from ramify.core.errors import ConfigError, nearest
from ramify.core.format import Action, AnswerAction, InvalidAction, Span, ToolAction, TurnAction
from ramify.core.problem import Problem
from ramify.core.segment import ToolStatus
from ramify.core.tool import ToolResult
from ramify.formats.thoughts import without_thoughts

OBSERVATIONS: Mapping[ToolStatus, str] = MappingProxyType(
    {
        "ok": "{text}",
        "empty": "Tool({tag}) returned empty output.",
        "error": "{text}",
        "timeout": "{text}[timeout] Error: Tool({tag}) execution failed: no result in time",
        "crashed": "Error: Tool({tag}) execution failed with message: {text}",
        "refused": "Error: Tool({tag}) refused the call: {text}",
        "invalid": "Error: {text}",
    }
)
"""What the model is shown for each status of a call (texts of empty and crashed calls: RUC-NLPIR/ARPO)."""

QUOTABLE: Final = ("question", "answer", "critique", "previous", "choices")
"""What a quoting template may cite by name. It may also cite contexts by number."""

_NAME = re.compile(r"[A-Za-z_][\w.-]*")
_INDEX = re.compile(r"-?\d+")


@dataclass(frozen=True, slots=True)
class TagFormat:
    """Actions between tags. Every field is data, so a table in a TOML file makes a new format."""

    tags: Mapping[str, str] = field(default_factory=dict[str, str])
    """Tool name -> the tag that calls it. Empty = an agent without tools."""
    template: str = "<|user|>{question}<|end|><|assistant|>"
    """Opening context. Control tokens may be spelt in it."""
    answer_tag: str = "answer"
    stops_at_answer: bool = True
    """Whether the closing answer tag ends the path. ARPO trains with false (the end of the sequence ends the path) and
    tests with true. Tokens after an answer carry no information, so true is the default."""
    observation: str = " <result>\n{text}\n</result>"
    """Text around a tool's result (RUC-NLPIR/ARPO: the leading space is part of it)."""
    texts: Mapping[str, str] = field(default_factory=dict[str, str])
    """Status -> text, where it differs from `OBSERVATIONS`. It may cite `{text}` and `{tag}`."""
    strips_results: bool = False
    """Whether whitespace around a tool's result is dropped (as in Search-R1)."""
    reply: str = "<|end|><|user|>{text}<|end|><|assistant|>"
    """Text around an environment's answer to a whole turn."""
    invalid: str | None = None
    """The whole observation after something that is no action, or after an empty call; None = `texts` inside the
    observation."""

    def __post_init__(self) -> None:
        tags = [*self.tags.values(), self.answer_tag]
        for tag in tags:
            if not _NAME.fullmatch(tag):
                raise ConfigError(f"{tag!r} is no tag: letters, digits, '_', '.' and '-', a letter first")
        if len(set(tags)) < len(tags):
            raise ConfigError(f"every tool and the answer need a tag of their own, got {tags!r}")
        _check(self.template, "template", must={"question"})
        _check(self.observation, "observation", must={"text"})
        _check(self.reply, "reply", must={"text"})
        for status, text in self.texts.items():
            if status not in OBSERVATIONS:
                raise ConfigError(f"texts.{status}: no such status; {nearest(status, OBSERVATIONS)}")
            _check(text, f"texts.{status}", may={"text", "tag"})

    @property
    def stops(self) -> tuple[str, ...]:
        """Closing tags of the tools, then of the answer if it ends the path."""
        tags = [*self.tags.values(), *([self.answer_tag] if self.stops_at_answer else [])]
        return tuple(f"</{tag}>" for tag in tags)

    def open(self, problem: Problem) -> Sequence[Span]:
        """The template with the question, which is not trusted."""
        return spans_of(self.template, {"question": problem.question})

    def quote(self, template: str, contexts: Sequence[Branch], problem: Problem) -> Sequence[Span]:
        """The template with what it cites. `{question}` is the question; `{0}` or `{-1}` is the response of the context
        with that number; `{previous}` is the last response; `{answer}` is the last response that gives an answer, or
        else the first response; `{critique}` is the last response that a critic wrote (such a response is never
        `{answer}` if another gives one); `{choices}` is all responses, numbered from 1
        (princeton-nlp/tree-of-thought-llm).

        Raises `ConfigError` for an unknown name or a missing context.
        """
        return quoted(template, contexts, problem.question, answer=self.answer)

    def read(self, run: str) -> Action | None:
        """The action whose closing tag comes last in `run`. Text after that tag is ignored: it came with the tag's
        token.

        A closing tag without an opening tag is an `InvalidAction`. Nothing between the tags is a `ToolAction` with ''.
        """
        tools = {tag: tool for tool, tag in self.tags.items()}
        end, tag = max((run.rfind(f"</{tag}>"), tag) for tag in (*tools, self.answer_tag))
        if end < 0:
            return None
        start = run.rfind(f"<{tag}>", 0, end)
        content = run[start + len(tag) + 2 : end]
        if start < 0 or f"</{tag}>" in content:
            return InvalidAction(f"</{tag}> closes nothing; write <{tag}>, then the content, then </{tag}>")
        return ToolAction(tools[tag], content.strip()) if tag in tools else AnswerAction(content.strip())

    def observe(self, action: Action, result: ToolResult) -> Sequence[Span]:
        """The answer to an action, inside the observation. A tool's text is not trusted, and not changed except by
        `strips_results`."""
        if self.invalid is not None and result.status == "invalid":
            return [Span(self.invalid, is_trusted=True)]
        if isinstance(action, TurnAction):
            return spans_of(self.reply, {"text": answer_to_turn(result)})
        tag = self.tags.get(action.tool, action.tool) if isinstance(action, ToolAction) else self.answer_tag
        said = result.text.strip() if self.strips_results else result.text
        status = "empty" if result.status == "ok" and not said else result.status
        text = spans_of(self.texts.get(status, OBSERVATIONS[status]), {"text": said, "tag": tag})
        frame = spans_of(self.observation, {"text": ""})
        return [part for span in frame for part in ([span] if span.is_trusted else text)]

    def turn(self, run: str) -> str | None:
        """The turn without its thinking; None = nothing is left."""
        return without_thoughts(run).strip() or None

    def answer(self, said: str) -> str | None:
        """The text between the last pair of answer tags in one turn, stripped; None = there is no such pair. If the
        observation ends with the opening tag, the turn after it begins inside the pair."""
        opening, closing = f"<{self.answer_tag}>", f"</{self.answer_tag}>"
        first, *others = turns_of(said)
        begun = opening if self.observation.rstrip().endswith(opening) else ""
        for turn in [*(begun + turn for turn in reversed(others)), first]:
            end = turn.rfind(closing)
            start = turn.rfind(opening, 0, max(end, 0))
            if start >= 0:
                return turn[start + len(opening) : end].strip()
        return None

    def tools(self) -> Mapping[str, str]:
        return self.tags


def answer_to_turn(result: ToolResult) -> str:
    """What an environment's answer to a whole turn says; a failed step says so."""
    if result.status in ("ok", "empty", "error"):
        return result.text
    return OBSERVATIONS[result.status].format(text=result.text, tag="environment")


def response_of(context: Branch) -> str:
    """Text after a context's opening, without the end-of-sequence token."""
    ids = context.ids[context.num_prompt :]
    if len(ids) and ids[-1] == context.codec.eos_id:
        ids = ids[:-1]
    return context.codec.decode(ids)


def quoted(
    template: str,
    contexts: Sequence[Branch],
    question: str,
    *,
    answer: Callable[[str], str | None],
    said: Callable[[Branch], str] = response_of,
) -> list[Span]:
    """The template with what it cites, see `TagFormat.quote`. `answer` reads an answer from a context's own words;
    `said` gives what is quoted of a context."""
    check_quote(template)
    texts = [said(context) for context in contexts]
    written = list(zip(contexts, texts, strict=True))
    answers = [text for context, text in written if context.role != "critique" and answer(context.said) is not None]
    critiques = [text for context, text in written if context.role == "critique"]
    values = {"question": question, **({"critique": critiques[-1]} if critiques else {})}
    if texts:
        values |= {"previous": texts[-1], "answer": (answers or texts)[-1 if answers else 0]}
        values["choices"] = "\n".join(f"Choice {number}:\n{text}" for number, text in enumerate(texts, 1))
    values |= {str(number): texts[number] for number in range(-len(texts), len(texts))}
    for name in placeholders(template):
        if name not in values:
            raise ConfigError(f"template {template!r} cites {{{name}}}, but there are {len(texts)} contexts to quote")
    return spans_of(template, values)


def check_quote(template: str) -> None:
    """Raise `ConfigError` unless `quote` knows every placeholder of the template."""
    for name in placeholders(template):
        if name not in QUOTABLE and not _INDEX.fullmatch(name):
            allowed = ", ".join(f"{{{known}}}" for known in QUOTABLE)
            raise ConfigError(
                f"template {template!r} cites {{{name}}}; allowed are {allowed} and the "
                "number of a context such as {0} or {-1}; write {{ and }} for braces"
            )


def placeholders(template: str) -> list[str]:
    """Names in braces, in order. Raises `ConfigError` if the braces do not match."""
    return [name for _, name in _parts(template) if name is not None]


def _parts(template: str) -> list[tuple[str, str | None]]:
    """Literal texts, each with the placeholder after it, or None."""
    try:
        parsed = list(Formatter().parse(template))
    except ValueError as error:
        raise ConfigError(f"template {template!r}: {error}; write {{{{ and }}}} for braces") from None
    for _, name, spec, conversion in parsed:
        if name is not None and (spec or conversion):
            raise ConfigError(f"template {template!r}: {{{name}}} takes no format or conversion")
    return [(literal, name) for literal, name, _, _ in parsed]


def _check(template: str, what: str, *, must: Iterable[str] = (), may: Iterable[str] = ()) -> None:
    names, must = set(placeholders(template)), set(must)
    if not must <= names or not names <= must | set(may):
        allowed = ", ".join(f"{{{name}}}" for name in sorted(must | set(may)))
        raise ConfigError(f"{what} = {template!r} cites {sorted(names)}; it must cite {sorted(must)}, of {allowed}")


def spans_of(template: str, values: Mapping[str, str]) -> list[Span]:
    """The template's own text as trusted spans, and what it cites as untrusted spans."""
    spans: list[Span] = []
    for literal, name in _parts(template):
        spans.extend([Span(literal, is_trusted=True)] if literal else [])
        spans.extend([Span(values[name])] if name is not None else [])
    return spans
