"""The `messages` format: chat messages for engines without token ids, such as an OpenAI-compatible endpoint.

Each span it writes carries the message that it renders. The model gets exactly the messages; its own messages are sent
back unchanged. The text beside them is for people, judges and the viewer. Where there is a message, nothing is read
back from the text. Tools are called natively (the engine offers their schemas, and the message holds the calls) or by
tags in the text; results of calls by tags are messages of the user.

Only the first call of a turn is made. Every other call in the turn gets a correction, because servers refuse a
conversation with an unanswered call. Image files that a tool returned are sent as content parts and are never part of
the text.
"""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, cast

from ramify.core.branch import Branch, turns_of
from ramify.core.errors import ConfigError
from ramify.core.format import Action, Span, ToolAction, TurnAction
from ramify.core.problem import Problem
from ramify.core.tool import ToolResult
from ramify.formats.calls import CALL, CALL_END, only_text, read_function
from ramify.formats.tags import OBSERVATIONS, TagFormat, answer_to_turn, quoted
from ramify.formats.thoughts import without_thoughts

Calls = Literal["native", "tags"]
Message = Mapping[str, Any]

MESSAGES: Final = "messages"
"""Public column with the messages of the opening."""
IMAGE_SUFFIXES: Final = (".gif", ".jpeg", ".jpg", ".png", ".webp")
"""Suffixes of attachments that are shown to the model: the image types that chat completions accept."""
FILE: Final = "file://"
"""Prefix with which a message names a file of this machine. The engine sends the file's content."""
ANSWER_TAG: Final = TagFormat().answer_tag
ONE_CALL: Final = (
    "Error: one call is made in a turn, the first; this one was not made. Wait for a result, then call again"
)

SYSTEM_ROLES: Final = ("system", "developer")
_RESULT: Final = ("\n<tool_response>\n", "\n</tool_response>\n")
"""Around the result of a native call in the text (Hermes)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagesOptions:
    """The configuration options of a format of messages. Raises `ConfigError` as `TagFormat` does."""

    system: str | None = None
    """The system message. None = a message that explains how to call tools and give answers; '' = no system message."""
    template: str = "{question}"
    """The user's message."""
    calls: Calls | None = None
    """How tools are called. None = by tags if the task's own format has tags for its tools, because its judges may read
    them; otherwise natively."""
    opening: Literal["question", "messages"] = "question"
    """What opens a context: the question, or the problem's public column `messages`, as it is. A system message in it
    takes the place of `system`."""
    answer_tag: str | None = None
    """Tag around the answer; its closing tag ends the path. None = the tag of the task's own tag format. If the task
    has another format, the whole last message is the answer."""

    def __post_init__(self) -> None:
        TagFormat(template=self.template, answer_tag=ANSWER_TAG if self.answer_tag is None else self.answer_tag)


class Messages:
    """Speaks in chat messages. `schemas` are the tools' (`core.tool.schema_of`).

    `spoken` is the tag format of the task or the configuration; its tags, observations and answer are used. None =
    there is no such format: calls are native and the last message is the answer, unless the options say otherwise.
    """

    Config = MessagesOptions

    def __init__(
        self,
        spoken: TagFormat | None = None,
        *,
        schemas: Sequence[Mapping[str, Any]] = (),
        options: MessagesOptions = MessagesOptions(),
    ) -> None:
        _refuse_bad_schemas(schemas)
        spoken_tags: Mapping[str, str] = {} if spoken is None else spoken.tags
        self._calls: Calls = options.calls or ("tags" if spoken_tags else "native")
        answer_tag = options.answer_tag or (None if spoken is None else spoken.answer_tag)
        self._has_answer_tag = answer_tag is not None or self._calls == "tags"
        self._schemas = {str(schema["name"]): schema for schema in schemas}
        self._tags = replace(
            spoken or TagFormat(),
            tags={name: spoken_tags.get(name, name) for name in self._schemas} if self._calls == "tags" else {},
            template=options.template,
            answer_tag=answer_tag or ANSWER_TAG,
            stops_at_answer=self._has_answer_tag and (spoken is None or spoken.stops_at_answer),
        )
        self._explains = options.system is None
        self._system = self._explained() if options.system is None else options.system
        self._opens_conversations = options.opening == "messages"

    @property
    def schemas(self) -> tuple[Mapping[str, Any], ...]:
        """The functions that the engine offers; none if calls are tags."""
        return tuple(self._schemas.values()) if self._calls == "native" else ()

    @property
    def stops(self) -> tuple[str, ...]:
        """Closing tags. A native call has no stop word, because the server ends the turn."""
        return self._tags.stops

    def with_system(self, system: str) -> "Messages":
        """This format with another system message; '' = none."""
        made = copy(self)
        made._system, made._explains = system, False
        return made

    def open(self, problem: Problem) -> Sequence[Span]:
        """The system message, if there is one, and the user's message, or the problem's messages."""
        if self._opens_conversations:
            return self._conversation(messages_of(problem))
        return self._opened(self._tags.open(problem), problem.tools_among(list(self._schemas)))

    def quote(self, template: str, contexts: Sequence[Branch], problem: Problem) -> Sequence[Span]:
        """A separate conversation whose user message cites contexts, like `TagFormat.quote`."""
        cited = quoted(template, contexts, problem.question, answer=self.answer)
        return self._opened(cited)

    def read(self, run: str) -> Action | None:
        """The action at the end of a text, for engines that work with tokens: a call by tags, or the answer."""
        return self._tags.read(run) if self.stops else None

    def hear(self, message: Message) -> Action | None:
        """The first native call, or the action whose closing tag comes last in the text."""
        calls = tool_calls(message)
        if self._calls == "native" and calls:
            parameters = {name: schema["parameters"] for name, schema in self._schemas.items()}
            return read_function(*_function(calls[0]), parameters)
        return self.read(text_of(message))

    def observe(self, action: Action, result: ToolResult) -> Sequence[Span]:
        """The answer to an action that came as text: a message of the user."""
        if isinstance(action, TurnAction):
            return [_user(answer_to_turn(result), result)]
        text = "".join(span.text for span in self._tags.observe(action, result))
        return [_user(text, result)]

    def reply(self, message: Message, action: Action, result: ToolResult) -> Sequence[Span]:
        """The answer to an action of `message`: one message for each native call in it, or one message of the user."""
        calls = tool_calls(message)
        if not calls and (self._calls == "tags" or isinstance(action, TurnAction)):
            return self.observe(action, result)
        if not calls:
            text = _said(action, result)
            return [Span(text.join(_RESULT), message={"role": "user", "content": text})]
        texts = [_said(action, result), *[ONE_CALL] * (len(calls) - 1)]
        spans = [_answer(call, text) for call, text in zip(calls, texts, strict=True)]
        images = _images(result.attachments)
        return [*spans, *([Span("", message={"role": "user", "content": images})] if images else [])]

    def turn(self, run: str) -> str | None:
        """The message without its thinking; None = nothing is left."""
        return without_thoughts(run).strip() or None

    def answer(self, said: str) -> str | None:
        """The text between the last pair of answer tags, or the last message without its thinking; None = there is
        none, or it is a call."""
        if self._has_answer_tag:
            return self._tags.answer(said)
        text = without_thoughts(turns_of(said)[-1].rpartition(_RESULT[1])[2])
        return None if CALL in text else text.strip() or None

    def tools(self) -> Mapping[str, str]:
        return {name: self._tags.tags.get(name, name) for name in self._schemas}

    def _conversation(self, messages: Sequence[Message]) -> list[Span]:
        own = {"role": "system", "content": self._system}
        has_own = bool(self._system) and all(message.get("role") not in SYSTEM_ROLES for message in messages)
        every = [*([own] if has_own else []), *messages]
        return [Span(f"{rendered(message)}\n\n", message=message) for message in every]

    def _opened(self, question: Sequence[Span], names: Collection[str] | None = None) -> list[Span]:
        """`names`: the tools to explain; None = all."""
        is_whole = names is None or len(names) == len(self._schemas) or not self._explains
        system = self._system if is_whole else self._explained(names)
        said = {"system": system, "user": "".join(span.text for span in question)}
        return [Span(f"{text}\n\n", message={"role": role, "content": text}) for role, text in said.items() if text]

    def _explained(self, names: Collection[str] | None = None) -> str:
        """A text that explains how to call tools and give an answer. `names`: the tools; None = all."""
        tags = self._tags
        lines: list[str] = []
        if self._calls == "tags" and self._schemas:
            lines += ["You have these tools:", *map(self._shown, self._schemas if names is None else names)]
            lines += ["Write one call, then stop: its result comes in the next message."]
        if self._has_answer_tag:
            lines += [f"When you know the final answer, write <{tags.answer_tag}>the answer</{tags.answer_tag}>."]
        return "\n".join(lines)

    def _shown(self, name: str) -> str:
        """One line about a tool that is called by tags."""
        schema, tag = self._schemas[name], self._tags.tags[name]
        content = only_text(schema["parameters"]) or json.dumps(schema["parameters"], ensure_ascii=False)
        description = schema.get("description")
        return f"- <{tag}>{content}</{tag}>{f': {description}' if description else ''}"


def messages_of(problem: Problem) -> Sequence[Message]:
    """The opening messages of a problem: its public column `messages`, or its question."""
    given = cast("Sequence[Message] | None", problem.public.get(MESSAGES))
    return given or [{"role": "user", "content": problem.question}]


def rendered(message: Message) -> str:
    """A message of the model as text for people: its words, then its native calls with their arguments unchanged."""
    blocks = [
        f'{CALL}\n{{"name": {json.dumps(name)}, "arguments": {arguments or "{}"}}}\n{CALL_END}'
        for name, arguments in map(_function, tool_calls(message))
    ]
    text = text_of(message)
    return "\n".join([*([text] if text or not blocks else []), *blocks])


def text_of(message: Message) -> str:
    """The words of a message: its content, the texts of its parts, or else its refusal."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    texts = [part.get("text") for part in _tables(content)]
    text = "".join(text for text in texts if isinstance(text, str))
    refusal = message.get("refusal")
    return text or (refusal if isinstance(refusal, str) else "")


def tool_calls(message: Message) -> list[Mapping[str, Any]]:
    """The native calls of a message."""
    return _tables(message.get("tool_calls"))


def _tables(value: Any) -> list[Mapping[str, Any]]:
    """The objects in a list; empty if `value` is no list."""
    items = cast("Sequence[Any]", value if isinstance(value, list | tuple) else ())
    return [cast("Mapping[str, Any]", item) for item in items if isinstance(item, Mapping)]


def _function(call: Mapping[str, Any]) -> tuple[str, str]:
    """Name and arguments of a call. Arguments given as an object become JSON text."""
    (function,) = _tables([call.get("function")]) or [{}]
    name, arguments = function.get("name"), function.get("arguments", "")
    if not isinstance(arguments, str):
        arguments = "" if arguments is None else json.dumps(arguments, ensure_ascii=False)
    return name if isinstance(name, str) else "", arguments


def _answer(call: Mapping[str, Any], text: str) -> Span:
    message = {"role": "tool", "tool_call_id": call.get("id", ""), "content": text}
    return Span(text.join(_RESULT), message=message)


def _said(action: Action, result: ToolResult) -> str:
    """The text shown for a result, which depends on the status of the call."""
    tool = action.tool if isinstance(action, ToolAction) else "invalid"
    status = "empty" if result.status == "ok" and not result.text.strip() else result.status
    return OBSERVATIONS[status].format(text=result.text, tag=tool)


def _user(text: str, result: ToolResult) -> Span:
    return Span(text, message={"role": "user", "content": _content(text, result)})


def _content(text: str, result: ToolResult) -> str | list[dict[str, Any]]:
    """The text alone, or with images as further parts."""
    images = _images(result.attachments)
    return [{"type": "text", "text": text}, *images] if images else text


def _images(attachments: Iterable[str]) -> list[dict[str, Any]]:
    """Content parts for the attachments that are image files."""
    found = [name for name in attachments if name.lower().endswith(IMAGE_SUFFIXES)]
    return [{"type": "image_url", "image_url": {"url": f"{FILE}{name.removeprefix(FILE)}"}} for name in found]


def _refuse_bad_schemas(schemas: Sequence[Mapping[str, Any]]) -> None:
    for schema in schemas:
        if not isinstance(schema.get("name"), str) or not isinstance(schema.get("parameters"), Mapping):
            raise ConfigError(f"the schema of a tool needs a name and parameters, a JSON schema; got {schema!r:.200}")
        try:
            json.dumps(schema, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"the schema of tool {schema['name']!r} is no JSON: {error}") from error
