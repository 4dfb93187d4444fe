"""Chat messages of other projects, in any of their spellings, as the messages of a sample.

Text stays verbatim. Calls of tools follow the words of the model; a result becomes a `ToolCall` with its arguments.
What is no text (images, audio) is named in brackets.
"""

import json
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, cast

from ramify.core.segment import FREE, ToolCall, ToolStatus, Usage
from ramify.formats.calls import CALL, CALL_END
from ramify.view.readers.plain_files import Table, inner, listed, table
from ramify.view.readers.shared_tree import ChatMessage, text_segment

_FAILED: Final[Mapping[str, ToolStatus]] = {"timeout": "timeout", "parsing": "invalid", "approval": "refused"}
"""Type of an error of a tool (Inspect) -> status. Any other type is an error of the tool itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledMessage:
    """What a file says of a message that the model sampled."""

    measures: Mapping[str, float] = field(default_factory=dict[str, float])
    """Values of the whole message."""
    usage: Usage = FREE
    version: int | None = None
    notes: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(slots=True)
class SampleMessages:
    """The messages of one sample, in the order of the file."""

    place: str
    """Where the sample stands, for errors."""
    messages: list[ChatMessage] = field(default_factory=list[ChatMessage])
    _calls: dict[str, tuple[str, str]] = field(default_factory=dict[str, tuple[str, str]])
    """Id of a call -> tool and arguments."""
    _open: deque[tuple[str, str]] = field(default_factory=deque[tuple[str, str]])
    """Calls in order: results without an id answer one after the other."""

    def extend(self, given: Any, sampled: SampledMessage | None = None) -> None:
        """Add a text or a list of messages behind what there is. `sampled`: what the file says of the model's text or
        messages in a completion; None = this is a prompt."""
        if isinstance(given, str):
            segment, said = text_segment("given" if sampled is None else "sampled", given), sampled or SampledMessage()
            self.messages.append(ChatMessage(segment=segment, after=self.last(), measures=said.measures))
            return
        for message in listed(self.place, "a conversation", given):
            self.add(message, sampled if inner(message, "role") == "assistant" else None, after=self.last())

    def last(self) -> int | None:
        """Place of the last message; None = there is none."""
        return len(self.messages) - 1 if self.messages else None

    def add(self, message: Any, sampled: SampledMessage | None, *, after: int | None, tokens: bytes = b"") -> None:
        """Add one message behind the `after`-th. `sampled`: None = the model did not sample it."""
        raw = table(self.place, "a message", message)
        role, text = str(raw.get("role") or "user"), text_of(raw.get("content"))
        if sampled is not None:
            segment = text_segment("sampled", self._written(raw, text))
            segment = replace(segment, usage=sampled.usage, version=sampled.version)
        elif role == "tool":
            segment = text_segment("given", f"\n<tool_response>\n{text}\n</tool_response>\n")
            segment = replace(segment, tool_call=self._answered(raw, text))
        else:
            lead = "\n\n" if after is not None and self.messages[after].segment.is_sampled else ""
            segment = text_segment("given", f"{lead}{self._written(raw, text)}\n\n")
        shown = replace(segment, message={"role": role, "content": text})
        said = sampled or SampledMessage()
        self.messages.append(
            ChatMessage(segment=shown, after=after, measures=said.measures, notes=said.notes, tokens=tokens)
        )

    def _written(self, raw: Table, text: str) -> str:
        """Thoughts, words and calls of a message. Keeps the calls for their results."""
        thoughts = raw.get("reasoning_content") or raw.get("reasoning")
        blocks = [f"<think>\n{text_of(thoughts)}\n</think>"] if thoughts else []
        blocks += [text] if text else []
        for call in listed(self.place, "tool_calls", raw.get("tool_calls")):
            identity, tool, arguments = _call(call)
            self._calls[identity] = (tool, arguments)
            self._open.append((tool, arguments))
            spelt = json.dumps(tool, ensure_ascii=False)
            blocks.append(f'{CALL}\n{{"name": {spelt}, "arguments": {arguments or "{}"}}}\n{CALL_END}')
        return "\n".join(blocks)

    def _answered(self, raw: Table, result: str) -> ToolCall:
        """The call that a result answers."""
        identity = text_of(raw.get("tool_call_id"))
        call = self._calls.get(identity) if identity else self._open.popleft() if self._open else None
        tool, arguments = call or ("", "")
        error = raw.get("error")
        status: ToolStatus = "ok" if result else "empty"
        if error is not None:
            status = _FAILED.get(str(inner(error, "type")), "error")
        named = tool or text_of(raw.get("name") or raw.get("function"))
        return ToolCall(named, arguments, status=status, result=result or text_of(inner(error, "message")))


def text_of(content: Any) -> str:
    """The words of a content: a text, or a list of parts."""
    match content:
        case str():
            return content
        case None:
            return ""
        case list():
            return "\n".join(_part(part) for part in cast("Sequence[Any]", content))
        case _:
            return json.dumps(content, ensure_ascii=False, default=str)


def question_of(prompt: Any) -> str:
    """The last thing that a prompt says; the prompt is a text or chat messages."""
    return text_of(inner(prompt[-1], "content")) if prompt and isinstance(prompt, list) else text_of(prompt)


def _part(part: Any) -> str:
    kind = inner(part, "type")
    match kind:
        case "text" | "input_text" | "output_text":
            return text_of(part.get("text"))
        case "reasoning":
            return f"<think>\n{text_of(part.get('reasoning'))}\n</think>"
        case str():
            return f"[{kind}]"
        case _:
            return text_of(part)


def _call(call: Any) -> tuple[str, str, str]:
    """Id, tool and arguments of a call: as OpenAI, verifiers and Inspect write it, or as JSON text of that."""
    if isinstance(call, str):
        try:
            call = json.loads(call)
        except (ValueError, RecursionError):
            return "", "", call
    function = inner(call, "function")
    body = function if isinstance(function, dict) else call
    name = function if isinstance(function, str) else inner(body, "name")
    space = inner(call, "namespace")
    return (
        text_of(inner(call, "id")),
        f"{space}.{text_of(name)}" if space else text_of(name),
        text_of(inner(body, "arguments")),
    )
