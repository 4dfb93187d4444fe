"""ChatProbe: finds out what a chat template writes, by rendering it with marks as contents.

It proves that a template is incremental: the text that the template writes after a turn of the model does not depend on
what was said before, nor on the turn itself. The template may render earlier text differently (drop thinking, trim,
write other JSON), because earlier text is never rendered again. Each method raises `ConfigError` that names what
failed.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any, Final, Literal

from ramify.core.errors import ConfigError
from ramify.formats.calls import CALL_END
from ramify.formats.frames import PROBES, Frame, learned

Message = Mapping[str, Any]
RenderChat = Callable[[Sequence[Message], Sequence[Mapping[str, Any]], bool], str]
"""Messages, tools (OpenAI's JSON), whether to add the header of the next turn -> text. Raises `ConfigError`."""

MARK: Final = "turnmarkq"
"""The last thing that the model says in a probe."""
CALL_ID: Final = "callidone"
"""Nine letters or digits, as Mistral's templates require of an id."""

Form = Literal["calls", "text"]
"""How a turn is given to the template: its call as data, or the whole turn as text."""


@dataclass(frozen=True, slots=True)
class Past:
    """An earlier turn, and the result of its call."""

    said: str
    result: str


HISTORIES: Final[tuple[tuple[Past, ...], ...]] = (
    (),
    (Past("Let me see.", "3"),),
    (Past("<think>\nFirst this.\n</think>\n\nSo:", "  x\n"), Past("", '{"a": "b"}')),
    (Past("  spaces \n", "1"), Past("é ☃", "two\nlines"), Past("<think>no</think>", "4"), Past("z", "5")),
)
"""Histories that may precede the turn."""
SAID: Final = ("", "Look: ", "<think>\nHm.\n</think>\n\nThen ", "\n  ")
"""Texts that the turn itself may say before it ends."""
CONTENTS: Final = tuple({"result": text, "tool": "a tool"} for text in PROBES[::3])
"""Contents that may answer the turn."""


@dataclass(frozen=True, slots=True)
class ChatProbe:
    """What `render` writes with these tools and this system message."""

    render: RenderChat
    schemas: Sequence[Mapping[str, Any]]
    system: str

    def opening(self) -> Frame:
        """The frame of the opening context, around `question`."""
        try:
            return learned(lambda values: self._rendered(self._opened(values["question"])), ["question"])
        except ConfigError as error:
            raise ConfigError(f"the opening of the chat template: {error}") from error

    def shows_tools(self) -> bool:
        """Whether the opening changes when the tools are left out."""
        messages = self._opened("question")
        return self._rendered(messages) != replace(self, schemas=())._rendered(messages)

    def closing(self) -> str:
        """The text after the last turn of a conversation."""
        said = {"role": "assistant", "content": MARK}
        return self._rendered([*self._opened("question"), said], has_header=False).rpartition(MARK)[2]

    def turn(self) -> Frame:
        """The frame between a turn that acted and the next one. Its slots are `result` and, if the template shows it,
        `tool`."""
        form = self._form()
        try:
            frame = learned(partial(self._behind, form, (), ""), ["result", "tool"])
            _refuse_unusable(frame)
            for history, said, contents in product(HISTORIES, SAID, CONTENTS):
                _refuse_other(self._behind(form, history, said, contents), frame.text(contents), len(history), said)
        except ConfigError as error:
            raise ConfigError(f"what the chat template writes behind a turn that acts: {error}") from error
        return frame

    def user_turn(self) -> Frame:
        """The frame between a whole turn and the next one, around the user's turn, its slot `result`. The turn itself
        must have ended with what `closing` begins with."""
        try:
            frame = learned(partial(self._behind_turn, (), ""), ["result"])
            _refuse_unusable(frame)
            for history, said, contents in product(HISTORIES, SAID, CONTENTS):
                _refuse_other(self._behind_turn(history, said, contents), frame.text(contents), len(history), said)
        except ConfigError as error:
            raise ConfigError(f"what the chat template writes around a user's turn: {error}") from error
        return frame

    def _behind_turn(self, history: Sequence[Past], said: str, values: Mapping[str, str]) -> str:
        """The text after a turn that says `said` and the mark, and that the user answers."""
        messages = self._opened("question")
        for turn in history:
            messages += [{"role": "assistant", "content": turn.said}, {"role": "user", "content": turn.result}]
        messages += [{"role": "assistant", "content": said + MARK}, {"role": "user", "content": values["result"]}]
        _, mark, rest = self._rendered(messages).partition(MARK)
        if not mark:
            raise ConfigError("the template does not show what the model has said")
        return rest

    def _form(self) -> Form:
        """`calls` if the template writes a call as the model does, else `text`."""
        if not self.schemas:
            return "text"
        try:
            text = self._rendered(self._conversation("calls", (), "", {"result": "resultmarkq", "tool": "f"}))
        except ConfigError:
            return "text"
        return "calls" if CALL_END in text.partition(MARK)[2].partition("resultmarkq")[0] else "text"

    def _behind(self, form: Form, history: Sequence[Past], said: str, values: Mapping[str, str]) -> str:
        """The text after a turn that says `said` and acts."""
        text = self._rendered(self._conversation(form, history, said, values))
        _, mark, rest = text.partition(MARK)
        if not mark:
            raise ConfigError("the template does not show what the model has said")
        return rest if form == "text" else rest.partition(CALL_END)[2]

    def _conversation(
        self, form: Form, history: Sequence[Past], said: str, values: Mapping[str, str]
    ) -> list[dict[str, Any]]:
        """A conversation up to the result of a turn whose call, or whose text, ends with the mark."""
        tool = str(self.schemas[0]["name"]) if self.schemas else ""
        messages = self._opened("question")
        for turn in history:
            messages += self._exchange(form, turn.said, "1", {"result": turn.result, "tool": tool})
        return messages + self._exchange(form, said, MARK, values)

    def _exchange(self, form: Form, said: str, argument: str, values: Mapping[str, str]) -> list[dict[str, Any]]:
        """A turn of the model and its answer: from a tool, or from the user if there are no tools."""
        tool, result = values["tool"], values["result"]
        answered = {"role": "tool", "content": result, "name": tool, "tool_call_id": CALL_ID}
        if form == "text":
            turn: dict[str, Any] = {"role": "assistant", "content": said + argument}
            return [turn, answered if self.schemas else {"role": "user", "content": result}]
        function = {"name": tool, "arguments": {"input": argument}}
        calls = [{"type": "function", "id": CALL_ID, "function": function}]
        return [{"role": "assistant", "content": said, "tool_calls": calls}, answered]

    def _opened(self, question: str) -> list[dict[str, Any]]:
        system = [{"role": "system", "content": self.system}] if self.system else []
        return [*system, {"role": "user", "content": question}]

    def _rendered(self, messages: Sequence[Message], *, has_header: bool = True) -> str:
        return self.render(messages, [{"type": "function", "function": schema} for schema in self.schemas], has_header)


def _refuse_unusable(frame: Frame) -> None:
    glue = "".join(part for part in frame.parts if isinstance(part, str))
    if MARK in glue:
        raise ConfigError("the turn itself is written again; what stands behind a turn must not repeat it")
    if CALL_ID in glue:
        raise ConfigError("the id of the call is shown, but a call written as text has none")


def _refuse_other(written: str, expected: str, num_before: int, said: str) -> None:
    if written != expected:
        raise ConfigError(
            f"with {num_before} turns before it, a turn that says {said!r} is followed by {written!r}, and by "
            f"{expected!r} when it stands alone; this must not differ, because earlier text is never written again"
        )
