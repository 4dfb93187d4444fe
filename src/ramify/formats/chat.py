"""The `chat` format: a model's own chat template and its native tool calls.

The template is rendered before the run starts and never again: a `Frame` for the opening, and one for what stands
between a turn of the model and the next one (its end, the tool's result, the header of the next turn). What the model
sampled stays as it is for ever; templates that would drop earlier thinking, trim it or write a call in other JSON never
get to. A template whose frame depends on earlier turns, or on what contents hold, is refused with a `ConfigError`.

A turn holds one call: its closing tag stops the model, which sees the result before it can write the next one. Several
in one turn are answered by a correction, and none is made.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ramify.core.branch import Branch
from ramify.core.codec import Codec
from ramify.core.errors import ConfigError
from ramify.core.format import Action, AnswerAction, InvalidAction, Span, ToolAction, controls
from ramify.core.problem import Problem
from ramify.core.tool import ToolResult
from ramify.formats.calls import CALL, CALL_END, FUNCTION, Syntax, read_call
from ramify.formats.chat_probe import ChatProbe, RenderChat
from ramify.formats.frames import Frame
from ramify.formats.tags import OBSERVATIONS, quoted
from ramify.formats.thoughts import THINK, THOUGHT

_LEADING_THOUGHT = re.compile(rf"\A\s*{THOUGHT.pattern}", re.DOTALL)
_ANSWER_TAG = re.compile(r"[A-Za-z_][\w.-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatOptions:
    """What a configuration says of a chat format."""

    template: str | None = field(default=None, metadata={"names": "file"})
    """A model's folder or a Jinja file; None = the template of the engine's model."""
    template_name: str | None = None
    """Of several templates; None = `tool_use` where there are tools and it is there, else `default` (transformers)."""
    system: str = ""
    """The system message; '' = none, or the template's own."""
    calls: Syntax | None = None
    """How the model writes a call; None = `xml` where the template shows that, else `hermes`."""
    answer_tag: str | None = None
    """The answer stands between these tags, and the closing one ends the path; None = it is the last turn."""
    date: str | None = None
    """Today for the template, `2025-07-26`; None = it is not told, so that a run never depends on the clock."""
    variables: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Further variables of the template, e.g. `enable_thinking`."""

    def __post_init__(self) -> None:
        if self.answer_tag is not None and not _ANSWER_TAG.fullmatch(self.answer_tag):
            raise ConfigError(f"answer_tag = {self.answer_tag!r}: letters, digits, '_', '.' and '-', a letter first")


class Chat:
    """Speaks with a model as `render`, its chat template, does. `schemas` are the tools' (`core.tool.schema_of`).

    Renders a hundred times when it is made. Raises `ConfigError` naming the probe that a template fails.
    """

    Config = ChatOptions

    def __init__(
        self,
        render: RenderChat,
        *,
        codec: Codec,
        schemas: Sequence[Mapping[str, Any]] = (),
        options: ChatOptions | None = None,
    ) -> None:
        options = options or ChatOptions()
        _refuse_bad_schemas(codec, schemas)
        probe = ChatProbe(render, schemas, options.system)
        self._schemas = {str(schema["name"]): schema["parameters"] for schema in schemas}
        self._answer_tag = options.answer_tag
        self._opening = probe.opening()
        self._turn = probe.turn()
        self._syntax: Syntax = options.calls or _taught(self._opening, shows_tools=probe.shows_tools())
        spelt = [spelling for _, spelling in controls(codec, probe.closing())[:1]]
        self._ends = tuple(filter(None, [codec.decode([codec.eos_id]), *spelt]))
        self._opens_thinking = self._opening.tail.rstrip().endswith(THINK)

    @property
    def stops(self) -> tuple[str, ...]:
        """The end of a call, then that of the answer."""
        return (*((CALL_END,) if self._schemas else ()), *((self._answer_end,) if self._answer_tag else ()))

    @property
    def _answer_end(self) -> str:
        return f"</{self._answer_tag}>"

    def open(self, problem: Problem) -> Sequence[Span]:
        """The template's opening around the question, which is not trusted."""
        return self._opening.fill({"question": problem.question})

    def quote(self, template: str, contexts: Sequence[Branch], problem: Problem) -> Sequence[Span]:
        """The opening around a user's turn that cites contexts, as `TagFormat.quote` does; none of it is trusted."""
        cited = quoted(template, contexts, problem.question, answer=self.answer)
        return self._opening.fill({"question": "".join(span.text for span in cited)})

    def read(self, run: str) -> Action | None:
        """The call or the answer that ends `run`; None while the model thinks, and where neither does."""
        said = _LEADING_THOUGHT.sub("", self._unfolded(run))
        call = said.rfind(CALL_END) if self._schemas else -1
        answer = said.rfind(self._answer_end) if self._answer_tag else -1
        if max(call, answer) < 0:
            return None
        if call > answer:
            return read_call(said, self._syntax, self._schemas)
        text = self.answer(run)
        tag = self._answer_tag
        return InvalidAction(f"</{tag}> closes nothing; write <{tag}> first") if text is None else AnswerAction(text)

    def observe(self, action: Action, result: ToolResult) -> Sequence[Span]:
        """What the template writes between the turn that acted and the next one; the tool's text is not trusted."""
        tool = action.tool if isinstance(action, ToolAction) else "invalid"
        status = "empty" if result.status == "ok" and not result.text.strip() else result.status
        text = OBSERVATIONS[status].format(text=result.text, tag=tool)
        return self._turn.fill({"result": text, "tool": tool})

    def answer(self, response: str) -> str | None:
        """The last turn without its thinking, or what it has between answer tags; None = there is none, or a call."""
        last = response.rpartition(self._turn.tail)[2] if self._turn.tail.strip() else response
        text = THOUGHT.sub("", self._unfolded(last))
        if self._answer_tag is not None:
            end = text.rfind(self._answer_end)
            start = text.rfind(f"<{self._answer_tag}>", 0, max(end, 0))
            return None if start < 0 else text[start + len(self._answer_tag) + 2 : end].strip()
        for end in self._ends:
            text = text.removesuffix(end)
        is_call = bool(self._schemas) and CALL in text
        return None if is_call else text.strip() or None

    def tools(self) -> Mapping[str, str]:
        return {name: name for name in self._schemas}

    def _unfolded(self, run: str) -> str:
        """`run` with the beginning of its thinking, where the template has written that."""
        return f"{THINK}{run}" if self._opens_thinking else run


def _taught(opening: Frame, *, shows_tools: bool) -> Syntax:
    """How the opening says that calls are written; one that shows no tools says nothing."""
    text = opening.text({"question": ""})
    if shows_tools and CALL not in text:
        raise ConfigError(
            f"the chat template shows the tools, but not how to call them by {CALL}; say what the model writes: "
            "format_options.calls = 'hermes' or 'xml'"
        )
    return "xml" if FUNCTION in text else "hermes"


def _refuse_bad_schemas(codec: Codec, schemas: Sequence[Mapping[str, Any]]) -> None:
    """A schema is written by the template as its own text, so it must not spell what only the template may."""
    for schema in schemas:
        if not isinstance(schema.get("name"), str) or not isinstance(schema.get("parameters"), Mapping):
            raise ConfigError(f"the schema of a tool needs a name and parameters, a JSON schema; got {schema!r:.200}")
        try:
            text = json.dumps(schema, ensure_ascii=False, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"the schema of tool {schema['name']!r} is no JSON: {error}") from error
        if spelt := controls(codec, text):
            raise ConfigError(
                f"the schema of tool {schema['name']!r} spells the control token {spelt[0][1]!r}; take it out"
            )
