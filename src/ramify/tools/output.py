"""Output: turns whatever a tool returns into a `ToolResult` that can be shown, stored and compared. Invalid output
becomes status `crashed`.

Afterwards the text is valid Unicode (bytes that are not UTF-8 and lone surrogates become U+FFFD; NUL stays) and at most
`max_bytes` long, with a note if something was left out. The metadata is plain data that a journal can store.
"""

import math
import re
from collections.abc import Mapping
from numbers import Real
from typing import Any

from ramify.core.segment import PathEnd, ToolStatus
from ramify.core.tool import ToolResult

STATUSES: tuple[ToolStatus, ...] = ("ok", "empty", "error", "timeout", "crashed")
"""Statuses that a tool may return. `refused` and `invalid` are for calls that never reached a tool."""
ENDS: tuple[PathEnd | None, ...] = (None, "done", "truncated")
MIN_BYTES = 256
"""Room for the note about what was left out, and some text on both sides of it."""
MAX_DEPTH = 16
MOST_SECONDS = 1e9
"""More than this is no time that a call can have taken."""

_SURROGATE = re.compile("[\ud800-\udfff]")


def made_safe(returned: object, *, max_bytes: int, most_s: float | None = None) -> ToolResult:
    """`returned` as a safe result. Bare text or bytes count as a result with status `ok`; anything invalid as a crash.
    `most_s`: seconds that the call took, of which the tool's own are a part."""
    result = ToolResult(returned) if isinstance(returned, str | bytes) else returned  # pyright: ignore[reportArgumentType]
    if not isinstance(result, ToolResult):
        return _junk(f"returned {type(returned).__name__} and not a ToolResult")
    if not isinstance(result.text, str | bytes):
        return _junk(f"returned {type(result.text).__name__} as its text")
    if result.status not in STATUSES:
        return _junk(f"returned the status {result.status!r}; there are {', '.join(STATUSES)}")
    if not isinstance(result.metadata, Mapping) or not _is_plain(result.metadata, MAX_DEPTH):
        return _junk("returned metadata that is no plain data: texts, finite numbers, lists and tables of them")
    if not isinstance(result.attachments, list | tuple) or not all(isinstance(n, str) for n in result.attachments):
        return _junk(f"returned attachments that are no names: {result.attachments!r}")
    if not _is_number(result.reward) and result.reward is not None:
        return _junk(f"returned the reward {result.reward!r}; a reward is a finite number or None")
    if result.end not in ENDS:
        return _junk(f"returned the end {result.end!r}; there are {', '.join(map(repr, ENDS))}")
    if not isinstance(result.parts, Mapping) or not all(map(_is_number, result.parts.values())):
        return _junk(f"returned the parts {result.parts!r}; they are finite numbers by name")
    text = capped(valid(result.text), max_bytes)
    status = "empty" if result.status == "ok" and not text else result.status
    attachments, took_s = tuple(map(valid, result.attachments)), _seconds(result.took_s)
    if most_s is not None:
        took_s = most_s if took_s is None else min(most_s, took_s)
    metadata = _copied(result.metadata)
    reward = None if result.reward is None else float(result.reward)
    parts = {valid(str(name)): float(value) for name, value in result.parts.items()}
    return ToolResult(
        text=text,
        status=status,
        metadata=metadata,
        attachments=attachments,
        took_s=took_s,
        reward=reward,
        parts=parts,
        end=result.end,
    )


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)


def _seconds(took_s: object) -> float | None:
    """What a tool says that it took; None = it said nothing, or nothing that can be."""
    if isinstance(took_s, int | float) and 0 <= took_s <= MOST_SECONDS:
        return float(took_s)
    return None


def valid(text: str | bytes) -> str:
    """`text` as Unicode that can be encoded in UTF-8."""
    if isinstance(text, bytes):
        return text.decode("utf-8", errors="replace")
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)


def capped(text: str, max_bytes: int) -> str:
    """`text` in at most `max_bytes` (at least 256) of UTF-8: its head and tail, with a note between them about the
    cut."""
    if len(text) * 4 <= max_bytes:
        return text
    data = text.encode()
    if len(data) <= max_bytes:
        return text
    max_bytes = max(max_bytes, MIN_BYTES)
    note = f"\n[… {len(data)} bytes in all, cut to {max_bytes} …]\n"
    half = (max_bytes - len(note.encode())) // 2
    return data[:half].decode(errors="ignore") + note + data[-half:].decode(errors="ignore")


def _junk(reason: str) -> ToolResult:
    return ToolResult(f"the tool {valid(reason)[:200]}", "crashed")


def _is_plain(value: Any, depth: int) -> bool:
    match value:
        case None | bool() | str():
            return True
        case int():
            return -(1 << 63) <= value < 1 << 63
        case float():
            return math.isfinite(value)
        case list() | tuple():
            return depth > 0 and all(_is_plain(v, depth - 1) for v in value)
        case Mapping():
            return depth > 0 and all(isinstance(k, str) and _is_plain(v, depth - 1) for k, v in value.items())
        case _:
            return False


def _copied(value: Any) -> Any:
    """A copy of plain data with valid texts: a tool may later change what it returned."""
    match value:
        case str():
            return valid(value)
        case list() | tuple():
            return [_copied(v) for v in value]
        case Mapping():
            return {valid(k): _copied(v) for k, v in value.items()}
        case _:
            return value
