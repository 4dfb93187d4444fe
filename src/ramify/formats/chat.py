"""The `chat` format: a model's own chat template and its native tool calls.

The template is rendered before the run starts and never again. The result is two frames: a `Frame` for the opening, and
one for the text between two turns of the model (the end of the turn, the tool's result, the header of the next turn).
Tokens that the model sampled never change. Some templates would drop earlier thinking, trim it, or write a call in
other JSON; here they cannot. A template whose frame depends on earlier turns or on the contents raises `ConfigError`.

A turn holds one call: its closing tag stops the model, and the model sees the result before it can write the next call.
If a turn has several calls, none is made, and the model gets a correction.
"""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final, Literal

from ramify.core.branch import Branch, turns_of
from ramify.core.codec import Codec
from ramify.core.errors import ConfigError
from ramify.core.format import Action, AnswerAction, InvalidAction, IsSame, Span, ToolAction, TurnAction, controls
from ramify.core.problem import Problem
from ramify.core.tool import ToolResult
from ramify.formats.answer_keys import is_same_key
from ramify.formats.calls import CALL, CALL_END, FUNCTION, Syntax, read_call
from ramify.formats.chat_probe import ChatProbe, RenderChat
from ramify.formats.frames import Frame, split_at
from ramify.formats.messages import messages_of, text_of, tool_calls
from ramify.formats.tags import OBSERVATIONS, answer_to_turn, quoted
from ramify.formats.thoughts import THINK, THOUGHT

ROLES: Final = {"developer": "system"}
"""Roles of a conversation that templates know by another name."""

_LEADING_THOUGHT = re.compile(rf"\A\s*{THOUGHT.pattern}", re.DOTALL)
_ANSWER_TAG = re.compile(r"[A-Za-z_][\w.-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatOptions:
    """The configuration options of a chat format."""

    template: str | None = field(default=None, metadata={"names": "file"})
    """A model's folder or a Jinja file; None = the template of the engine's model."""
    template_name: str | None = None
    """Name, if there are several templates; None = `tool_use` if there are tools and it exists, else `default`
    (transformers)."""
    system: str = ""
    """The system message; '' = none, or the template's own."""
    calls: Syntax | None = None
    """How the model writes a call; None = `xml` if the template shows it, else `hermes`."""
    answer_tag: str | None = None
    """Tag around the answer; its closing tag ends the path. None = the answer is the last turn."""
    date: str | None = None
    """Today's date for the template, such as `2025-07-26`. None = the template gets no date, so a run never depends on
    the clock."""
    variables: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Further variables of the template, such as `enable_thinking`."""
    opening: Literal["question", "messages"] = "question"
    """What opens a context: the question, or the problem's public column `messages`, a conversation without calls.
    Votes over answers to a conversation compare what they say (`answer_keys`)."""

    def __post_init__(self) -> None:
        if self.answer_tag is not None and not _ANSWER_TAG.fullmatch(self.answer_tag):
            raise ConfigError(f"answer_tag = {self.answer_tag!r}: letters, digits, '_', '.' and '-', a letter first")


class Chat:
    """Speaks with a model through its chat template, `render`. `schemas` are the tools' (`core.tool.schema_of`).

    It renders about a hundred times when it is made. Raises `ConfigError` that names the probe that a template fails.
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
        self._made_of = (render, codec, tuple(schemas), options)
        probe = ChatProbe(render, schemas, options.system)
        self._schemas = {str(schema["name"]): schema["parameters"] for schema in schemas}
        self._answer_tag = options.answer_tag
        self._render = render
        self.opens_conversations: Final = options.opening == "messages"
        self._opening = probe.opening()
        self._openings: dict[frozenset[str], Frame] = {}
        self._turn = probe.turn()
        self._syntax: Syntax = options.calls or _taught(self._opening, shows_tools=probe.shows_tools())
        spelt = [spelling for _, spelling in controls(codec, probe.closing())[:1]]
        self._ends = tuple(filter(None, [codec.decode([codec.eos_id]), *spelt]))
        self._opens_thinking = self._opening.tail.rstrip().endswith(THINK)

    @property
    def stops(self) -> tuple[str, ...]:
        """The end of a call, then the end of the answer."""
        return (*((CALL_END,) if self._schemas else ()), *((self._answer_end,) if self._answer_tag else ()))

    @property
    def _answer_end(self) -> str:
        return f"</{self._answer_tag}>"

    def with_system(self, system: str) -> "Chat":
        """This format with another system message; '' = none, or the template's own. Raises `ConfigError` also if the
        template then writes turns that this format would not read."""
        render, codec, schemas, options = self._made_of
        made = Chat(render, codec=codec, schemas=schemas, options=replace(options, system=system))
        if (made._turn, made._syntax, made._opens_thinking) != (self._turn, self._syntax, self._opens_thinking):
            raise ConfigError(
                f"with the system message {system!r:.80} the chat template writes the turns behind it otherwise than "
                "without it; all contexts of a run are read alike, so set it for all: format_options.system"
            )
        return made

    def open(self, problem: Problem) -> Sequence[Span]:
        """The template's opening with the question, or the conversation. Neither is trusted. Raises `ConfigError` for a
        conversation that the template does not show."""
        if self.opens_conversations:
            return self._conversation(messages_of(problem))
        return self._opening_with(problem.tools_among(list(self._schemas))).fill({"question": problem.question})

    @property
    def is_same_answer(self) -> IsSame | None:
        """Whether two answers to a conversation say the same; None = the task decides."""
        return is_same_key if self.opens_conversations else None

    def quote(self, template: str, contexts: Sequence[Branch], problem: Problem) -> Sequence[Span]:
        """The opening with a user turn that cites contexts, like `TagFormat.quote`. No cited text is trusted."""
        cited = quoted(template, contexts, problem.question, answer=self.answer)
        return self._opening.fill({"question": "".join(span.text for span in cited)})

    def read(self, run: str) -> Action | None:
        """The call or the answer that ends `run`. None while the model thinks, and if neither ends `run`."""
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
        """What the template writes between the turn that acted and the next one. The tool's text is not trusted."""
        if isinstance(action, TurnAction):
            return self._user_turn.fill({"result": answer_to_turn(result)})
        tool = action.tool if isinstance(action, ToolAction) else "invalid"
        status = "empty" if result.status == "ok" and not result.text.strip() else result.status
        text = OBSERVATIONS[status].format(text=result.text, tag=tool)
        return self._turn.fill({"result": text, "tool": tool})

    def turn(self, run: str) -> str | None:
        """The turn without its thinking and its end; None = nothing is left."""
        text = THOUGHT.sub("", self._unfolded(run))
        for end in self._ends:
            text = text.removesuffix(end)
        return text.strip() or None

    @cached_property
    def _user_turn(self) -> Frame:
        """What the template writes around the user's next turn, between two turns of the model. Learned when it is
        first needed: it is not in templates of tool results alone."""
        render, _, schemas, options = self._made_of
        return ChatProbe(render, schemas, options.system).user_turn()

    def answer(self, said: str) -> str | None:
        """The last turn without its thinking, or the text between its answer tags; None = there is none, or it is a
        call."""
        last = turns_of(said)[-1]
        last = last.rpartition(self._turn.tail)[2] if self._turn.tail.strip() else last
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

    def _opening_with(self, names: Collection[str]) -> Frame:
        """The opening that shows these tools; rendered once for each set of them."""
        if len(names) == len(self._schemas):
            return self._opening
        render, _, schemas, options = self._made_of
        key = frozenset(names)
        if key not in self._openings:
            shown = [schema for schema in schemas if schema["name"] in key]
            self._openings[key] = ChatProbe(render, shown, options.system).opening()
        return self._openings[key]

    def _conversation(self, messages: Sequence[Mapping[str, Any]]) -> list[Span]:
        """The template's own rendering of a conversation, with the texts in their places unchanged."""
        for number, message in enumerate(messages):
            if message.get("role") == "tool" or tool_calls(message):
                raise ConfigError(f"messages[{number}] is of a tool's call: a template of token ids shows texts alone")
        marks = {str(number): f"messagemark{number}q" for number in range(len(messages))}
        marked = [{"role": ROLES.get(m["role"], m["role"]), "content": marks[str(i)]} for i, m in enumerate(messages)]
        frame = split_at(self._render(marked, [], True), marks)
        for name in marks:
            if not frame.shows(name):
                raise ConfigError(
                    f"the chat template does not show messages[{name}], of {messages[int(name)]['role']!r}"
                )
        return frame.fill({str(number): text_of(message) for number, message in enumerate(messages)})

    def _unfolded(self, run: str) -> str:
        """`run` with the start of its thinking, if the template wrote that start."""
        return f"{THINK}{run}" if self._opens_thinking else run


def _taught(opening: Frame, *, shows_tools: bool) -> Syntax:
    """The call syntax that the opening shows; `hermes` if it shows no syntax. Raises `ConfigError` if it shows the
    tools but not `<tool_call>`."""
    text = opening.text({"question": ""})
    if shows_tools and CALL not in text:
        raise ConfigError(
            f"the chat template shows the tools, but not how to call them by {CALL}; say what the model writes: "
            "format_options.calls = 'hermes' or 'xml'"
        )
    return "xml" if FUNCTION in text else "hermes"


def _refuse_bad_schemas(codec: Codec, schemas: Sequence[Mapping[str, Any]]) -> None:
    """Raise `ConfigError` for a bad schema. The template writes a schema as its own trusted text, so a schema must not
    spell a control token."""
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
