"""Answer: how a server's answer is read, whichever server it was.

Raises `EngineError` for what cannot be read; nothing is guessed.
"""

from collections.abc import Sequence
from typing import Final, TypeVar

import msgspec

from ramify.core.errors import EngineError

A = TypeVar("A")

FIRST_WEIGHTS: Final = "default"
"""What vLLM and SGLang call the weights that a server was started with."""
MAX_DIGITS: Final = 18
"""Of a version: what is longer fits no signed 64-bit integer, which is how versions are stored."""


class VersionSpan(msgspec.Struct):
    """Tokens `start` to before `end` of an answer, and the name of the weights that sampled them."""

    version: str
    start: int
    end: int


def decoded(decoder: msgspec.json.Decoder[A], answer: bytes) -> A:
    """An answer's body. Raises `EngineError` `bad_answer` for one that is no such JSON."""
    try:
        return decoder.decode(answer)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise EngineError("bad_answer", f"{error}; it begins {answer[:60]!r}") from error


def version_number(name: str) -> int:
    """The policy version that a server calls `name`; 0 for the weights it was started with."""
    if name == FIRST_WEIGHTS:
        return 0
    if not (name.isascii() and name.isdigit() and len(name) <= MAX_DIGITS):
        raise EngineError("bad_versions", f"the server calls its weights {name[:60]!r}; a whole number is needed")
    return int(name)


def version_spans(told: Sequence[VersionSpan]) -> tuple[tuple[int, int], ...]:
    """(version, number of tokens) of spans, which must follow one another from the first token on."""
    at = 0
    for span in told:
        if span.start != at or span.end < at:
            raise EngineError("bad_versions", f"span {span.start}..{span.end} of {span.version!r} where {at} was next")
        at = span.end
    return tuple((version_number(span.version), span.end - span.start) for span in told)
