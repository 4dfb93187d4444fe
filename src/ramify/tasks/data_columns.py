"""Columns of a row: find one by name or dotted path, read it as a question, and make it plain data.

A row maps columns to values. A column is looked up by its exact name first, then, if the name has dots, by the path
through nested columns. A fault of a row is a `BadRow`; the report adds the row's place.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any, Final, cast

import numpy as np

Columns = Mapping[str, Any]
"""Column -> value, of one row."""

SYSTEM_MESSAGE: Final = "system_message"
"""Public column for the system message of a question that is a list of messages."""
CONVERSATION: Final = "conversation"
"""Public column for the messages of a written conversation."""
MISSING: Final = object()
"""`found` returns this if a row has no such column; None is a valid value."""


class BadRow(Exception):
    """A fault of one row."""


def found(row: Columns, column: str) -> Any:
    """The value of a column. None if a column on the path holds None; `MISSING` if there is no such column."""
    if column in row:
        return row[column]
    value: Any = row
    for name in column.split("."):
        if value is None:
            return None
        if not isinstance(value, Mapping) or name not in value:
            return MISSING
        value = value[name]
    return value


def value_of(row: Columns, column: str) -> Any:
    """The value of a column; None if the row does not have it."""
    value = found(row, column)
    return None if value is MISSING else value


def without(row: Columns, columns: Iterable[str]) -> dict[str, Any]:
    """The row without `columns` and without the values at their dotted paths. Does not change `row`."""
    rest = dict(row)
    for column in columns:
        rest.pop(column, None)
        head, _, path = column.partition(".")
        if path and isinstance(inner := rest.get(head), Mapping):
            rest[head] = without(cast(Columns, inner), [path])
    return rest


def names_in(row: Columns) -> Iterable[str]:
    """The columns of a row, and those one level inside them as dotted paths."""
    for column, value in row.items():
        yield column
        if isinstance(value, Mapping):
            yield from (f"{column}.{name}" for name in cast(Columns, value))


def plain(value: Any, column: str) -> Any:
    """`value` as JSON data. Numbers of numpy become Python's, and a number that is not finite becomes None, as in rows.

    Raises `BadRow` that names the column if JSON cannot hold the value, such as bytes and times.
    """
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else None
        case np.generic():
            return plain(value.item(), column)
        case Mapping():
            return {str(name): plain(inner, f"{column}.{name}") for name, inner in value.items()}
        case list() | tuple():
            return [plain(item, column) for item in cast(list[Any], value)]
        case _:
            kind = type(value).__name__
            raise BadRow(f"column {column!r} holds a value of type {kind}, which JSON cannot hold: {value!r:.80}")


def question_in(value: Any, column: str) -> tuple[str, Columns]:
    """The question in a value, and the public columns that come with it: the system message before it, if there is one.

    A list of chat messages is a question if it is one user message with at most one system message before it. Raises
    `BadRow` for anything else.
    """
    system: str | None = None
    if isinstance(value, list):
        system, value = _spoken(cast(list[Any], value), column)
    if not isinstance(value, str) or not value.strip():
        raise BadRow(f"column {column!r} holds no question: {value!r:.80}; a question is a text or a list of messages")
    for text in (value, system or ""):
        if any("\ud800" <= c <= "\udfff" for c in text):
            raise BadRow(
                f"column {column!r} holds a lone surrogate, which no text encoding can hold: {text!r:.80}; take it out"
            )
    return value, {} if system is None else {SYSTEM_MESSAGE: system}


def conversation_in(value: Any, column: str) -> tuple[str, Columns]:
    """The first question of a written conversation, and the public column with all its messages. Raises `BadRow` for
    anything but a list of messages with roles, of which the user says one as text."""
    messages = cast(list[Any], value) if isinstance(value, list) else []
    if not messages or not all(isinstance(each, Mapping) and isinstance(each.get("role"), str) for each in messages):
        raise BadRow(f"column {column!r} holds no conversation: {value!r:.80}; it is a list of messages with roles")
    asked = next((message.get("content") for message in messages if message["role"] == "user"), None)
    if not isinstance(asked, str):
        raise BadRow(f"column {column!r} holds a conversation in which the user asks {asked!r:.80}, which is no text")
    question, _ = question_in(asked, f"{column}.content")
    return question, {CONVERSATION: plain(messages, column)}


def _spoken(messages: list[Any], column: str) -> tuple[str | None, str]:
    """(the system's text, the user's text) of a list of messages."""
    said = [_message(message, column) for message in messages]
    match said:
        case [("user", text)]:
            return None, text
        case [("system", system), ("user", text)]:
            return system, text
        case _:
            roles = ", ".join(role for role, _ in said) or "none"
            raise BadRow(
                f"column {column!r} holds messages of {roles:.80}; a question is one message of the user, with at most "
                "one of the system before it"
            )


def _message(message: Any, column: str) -> tuple[str, str]:
    """(role, text). Keys with the value None count as missing: in a Parquet file every message has every key."""
    filled = {k: v for k, v in message.items() if v is not None} if isinstance(message, Mapping) else {}
    match filled:
        case {"role": str(role), "content": str(text), **more} if not more:
            return role, text
        case _:
            raise BadRow(
                f"column {column!r} holds {message!r:.80}, which is no message; a message has the texts 'role' and "
                "'content' and nothing else"
            )
