"""The messages of a search over a user's states (`ramify.search`): one message is one state.

Nothing is read from text. The id of a state, its score and whether it is final are fields of its message, which the
engine `states` writes and the journal keeps. The text beside them is for people.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from ramify.core.branch import Branch, turns_of
from ramify.core.format import Action, AnswerAction, Span
from ramify.core.problem import Problem
from ramify.core.segment import Segment
from ramify.core.tool import ToolResult

STATE: Final = "state"
"""Field of a message: the id of its state."""
SCORE: Final = "score"
IS_FINAL: Final = "is_final"
ENCODED: Final = "encoded"
"""The state as text, in a search that has a folder."""
PARENT: Final = "parent"
"""Field of the opening of a fresh context: the id of the state that it goes on from; None = the search begins."""


class StateMessages:
    """Opens contexts of a search over states. A fresh context names the state it goes on from, and repeats nothing."""

    schemas: tuple[Mapping[str, Any], ...] = ()
    stops: tuple[str, ...] = ()

    def open(self, problem: Problem) -> Sequence[Span]:
        return [Span(f"{problem.question}\n", message={"role": "user", "content": problem.question})]

    def quote(self, template: str, contexts: Sequence[Branch], problem: Problem) -> Sequence[Span]:
        """`template` is the name of the function that is called."""
        parent = state_id(contexts[-1].messages)
        return [Span(f"{template}: ", message={"role": "user", "content": template, PARENT: parent})]

    def read(self, run: str) -> Action | None:
        return None

    def hear(self, message: Mapping[str, Any]) -> Action | None:
        """The engine says by how it finishes whether a state ends its path."""
        return AnswerAction(str(message["content"]))

    def observe(self, action: Action, result: ToolResult) -> str | Sequence[Span]:
        return ""

    def reply(self, message: Mapping[str, Any], action: Action, result: ToolResult) -> Sequence[Span]:
        return ()

    def answer(self, said: str) -> str | None:
        """The last state as text, in searches whose states are whole answers; else all states of the path."""
        return turns_of(said)[-1].strip() or None

    def tools(self) -> Mapping[str, str]:
        return {}


def state_id(messages: Sequence[Mapping[str, Any]]) -> str | None:
    """The id of the state that these messages go on from; None = the search begins."""
    last = messages[-1]
    return last.get(STATE, last.get(PARENT))


def state_message(segments: Sequence[Segment]) -> Mapping[str, Any] | None:
    """The message of the state that a node holds; None = it holds none: its growth failed or was cut off."""
    message = (segments[-1].message if segments else None) or {}
    is_state = isinstance(message.get(STATE), str) and isinstance(message.get(SCORE), float)
    return message if is_state else None
