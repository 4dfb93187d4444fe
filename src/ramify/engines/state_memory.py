"""StateMemory: the states of a search over a user's states (`ramify.search`), and how each is told as a message.

States are kept as they are. In a search with a folder a message also holds its state as text, so that a resumed search
has the state again: as JSON where that gives the same value back, else by the user's `encode` and `decode`. Nothing is
pickled.
"""

import json
import traceback
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

from ramify.core.errors import EnginesDown
from ramify.edge.error_text import error_text
from ramify.formats.states import ENCODED, IS_FINAL, SCORE, STATE

MAX_TEXT: Final = 1000
"""Characters of a state that its node shows."""
MAX_DEPTH: Final = 100
"""Levels of a plain JSON value; a value that holds itself has more."""
MAX_NUMBER: Final = 1 << 1023
"""Numbers below it are plain JSON values; Python writes no number of thousands of digits."""


@dataclass(frozen=True, slots=True)
class ScoredState:
    """A state and its score; a function may return one where a pair says too little."""

    state: Any
    score: float
    """From 0 to 1; any real number."""
    is_final: bool = False
    """Whether nothing is grown from it. Searches over whole answers pay no attention: they may go on from any."""
    dollars: float | None = None
    """What the call cost; None = unknown."""


class BrokenFunction(EnginesDown):
    """A user's function, or `encode` or `decode`, returned what it must not return. Its cause may be a
    `KeyboardInterrupt` or a `SystemExit`, which the caller raises when everything is closed."""

    def __init__(self, detail: str) -> None:
        super().__init__("broken_function", detail)


class StateMemory:
    """The states of one search by id. Mutable.

    With `is_recorded`, states are also kept as text: by `encode`, or as JSON where they are plain JSON values.
    """

    def __init__(
        self,
        *,
        encode: Callable[[Any], str] | None = None,
        decode: Callable[[str], Any] | None = None,
        is_recorded: bool = False,
    ) -> None:
        self._encode, self._decode, self._is_recorded = encode, decode, is_recorded
        self._states: dict[str, Any] = {}
        self._encoded: dict[str, str] = {}
        """States of a resumed search that nobody has needed yet."""

    def add(self, key: str, made: ScoredState, name: str) -> dict[str, Any]:
        """Keep a new state of the function `name`. Returns its message."""
        text, encoded = self._told(made.state, key, name)
        message: dict[str, Any] = {"role": "assistant", "content": text, STATE: key, SCORE: made.score}
        if made.is_final:
            message[IS_FINAL] = True
        if self._is_recorded:
            message[ENCODED] = encoded
        self._states[key] = made.state
        return message

    def learn(self, messages: Iterable[Mapping[str, Any]]) -> None:
        """Know the states in recorded messages again."""
        self._encoded.update((message[STATE], message[ENCODED]) for message in messages if ENCODED in message)

    def state(self, key: str) -> Any:
        """The state with this id. Raises `BrokenFunction` if it is not recorded, or cannot be decoded."""
        if key not in self._states:
            if key not in self._encoded:
                raise BrokenFunction(f"the state {key!r} is not recorded")
            self._states[key] = self._decoded(self._encoded[key])
            del self._encoded[key]
        return self._states[key]

    def _told(self, state: Any, key: str, name: str) -> tuple[str, str]:
        """What is shown of a state, and the state as text; '' = it has none."""
        if self._encode is None and not is_json(state):
            if self._is_recorded:
                raise BrokenFunction(
                    f"{name} returned a state of type {type(state).__name__}, which is no plain JSON value, and a "
                    "search with out=… writes its states down; pass encode (state -> text) and decode (text -> state)"
                )
            # Nobody knows whether two such states are the same, so no two have the same text.
            return f"{_cut(shown(state))} #{key[:8]}", ""
        encoded = self._encoded_by_user(state) if self._encode else json.dumps(state)
        return _cut(state if isinstance(state, str) else encoded), encoded

    def _encoded_by_user(self, state: Any) -> str:
        try:
            encoded = cast(Callable[[Any], object], self._encode)(state)
        except Exception as error:
            raise BrokenFunction(
                f"encode raised {error_text(error)}{place_of(error)} for {shown(state):.200}"
            ) from error
        if not isinstance(encoded, str):
            raise BrokenFunction(f"encode returned {encoded!r:.200} for {shown(state):.200}; it must return a text")
        return encoded

    def _decoded(self, encoded: str) -> Any:
        decode = self._decode or json.loads
        try:
            return decode(encoded)
        except Exception as error:
            raise BrokenFunction(f"decode raised {error_text(error)}{place_of(error)} for {encoded!r:.200}") from error


def is_json(value: Any) -> bool:
    """Whether JSON gives the same value back: text, a finite number, a bool, None, and lists and dicts with text keys
    of such; no subclass of these."""
    pending, depth = [value], 0
    while pending:
        below: list[Any] = []
        for each in pending:
            kind = type(each)
            if kind is list:
                below += each
            elif kind is dict:
                if not all(type(key) is str for key in each):
                    return False
                below += each.values()
            elif not (kind in (str, bool, type(None)) or (kind in (int, float) and abs(each) < MAX_NUMBER)):
                return False
        pending, depth = below, depth + 1
        if depth > MAX_DEPTH:
            return False
    return True


def shown(value: Any) -> str:
    """Boundary to a user's `__repr__`, which may raise."""
    try:
        return repr(value)
    except Exception:  # noqa: BLE001 - the boundary
        return f"<{type(value).__name__}>"


def _cut(text: str) -> str:
    """At most `MAX_TEXT` characters, in UTF-8; of a longer text, a checksum of the whole stands at the end."""
    whole = text.encode(errors="replace")
    if len(text) <= MAX_TEXT:
        return whole.decode()
    return f"{text[:MAX_TEXT].encode(errors='replace').decode()}… #{zlib.crc32(whole):08x}"


def place_of(error: BaseException) -> str:
    """Where an error was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    return f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
