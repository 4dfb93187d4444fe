"""tau2 dialogue: a conversation of tau2 as text, for the agent's opening and for the model that plays the customer.

A customer who has functions calls one by a line of text, because a model of the run is asked by text.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

FIRST_WORDS: Final = "A customer has opened a chat. Greet them."
GO_ON: Final = "This is the conversation so far. Go on with it."
FUNCTIONS: Final = """\
You have these functions. To call one, write only a line with the word CALL, its name and its arguments, such as:
CALL look_at {"thing": "the phone"}
You then read the result, and write again."""
BEFORE: Final = "The conversation so far:"
NOW: Final = "Write your next message to the agent, and nothing else."
NOW_OR_CALL: Final = "Write your next message to the agent, or a call, and nothing else."

_CALL: Final = re.compile(r"^[ \t]*CALL[ \t]+(\S+)[ \t]*", re.MULTILINE)


def opening_words(history: Sequence[Any]) -> str:
    """What the agent reads first. `history`: tau2's messages before its first turn; words of the agent at their end
    are left out, for it speaks now."""
    if history and history[-1].role == "assistant" and not history[-1].tool_calls:
        history = history[:-1]
    seen = [each for each in history if not (each.role == "user" and each.tool_calls) and not _is_users(each)]
    told = _told(seen, {"assistant": "you", "user": "customer"})
    return f"{GO_ON}\n\n{told}" if told else FIRST_WORDS


def user_prompt(guidelines: str, functions: Sequence[Mapping[str, Any]], messages: Iterable[Any]) -> str:
    """How the customer's model is asked for its next message. `guidelines`: tau2's, with the scenario. `messages`: all
    of the conversation."""
    seen = [each for each in messages if not (each.role == "assistant" and each.tool_calls)]
    seen = [each for each in seen if each.role != "tool" or _is_users(each)]
    listed = [f"{FUNCTIONS}\n" + "\n".join(json.dumps(each) for each in functions)] if functions else []
    told = f"{BEFORE}\n\n{_told(seen, {'assistant': 'agent', 'user': 'you'})}"
    return "\n\n".join([guidelines, *listed, told, NOW_OR_CALL if functions else NOW])


def call_in(said: str) -> tuple[str, Mapping[str, Any]] | None:
    """The first call in what the customer said: a name and arguments; None = there is no call. Arguments that cannot be
    read are none, so that tau2 answers what is missing."""
    found = _CALL.search(said)
    if found is None:
        return None
    try:
        arguments, _ = json.JSONDecoder().raw_decode(said, found.end())
    except (ValueError, RecursionError):
        arguments = {}
    return found[1], arguments if isinstance(arguments, dict) else {}


def _is_users(message: Any) -> bool:
    """Whether a message is the result of a customer's call."""
    return message.role == "tool" and message.requestor == "user"


def _told(messages: Iterable[Any], names: Mapping[str, str]) -> str:
    return "\n\n".join(line for message in messages for line in _lines(message, names))


def _lines(message: Any, names: Mapping[str, str]) -> list[str]:
    if message.role == "tool":
        return [f"result: {message.content}"]
    if message.tool_calls:
        return [f"{names[message.role]}: CALL {each.name} {json.dumps(each.arguments)}" for each in message.tool_calls]
    return [f"{names[message.role]}: {message.content}"]
