"""Answer: reads the answer of a server of any kind.

Raises `EngineError` for whatever cannot be read; nothing is guessed.
"""

from collections.abc import Sequence
from typing import Final, TypeVar

import msgspec

from ramify.core.errors import EngineError

A = TypeVar("A")

FIRST_WEIGHTS: Final = "default"
"""The name of the weights that a vLLM or SGLang server was started with."""
MAX_DIGITS: Final = 18
"""Maximum digits of a version: a longer one does not fit the signed 64-bit integer in which versions are stored."""


class VersionSpan(msgspec.Struct):
    """Tokens `start` up to but not including `end` of an answer, and the name of the weights that sampled them."""

    version: str
    start: int
    end: int


def decoded(decoder: msgspec.json.Decoder[A], answer: bytes) -> A:
    """An answer's body, decoded. Raises `EngineError` `bad_answer` if the body does not match the decoder's type."""
    try:
        return decoder.decode(answer)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise EngineError("bad_answer", f"{error}; it begins {answer[:60]!r}") from error


def version_number(name: str) -> int:
    """The policy version for the name `name` of a server's weights; 0 for the weights it was started with."""
    if name == FIRST_WEIGHTS:
        return 0
    if not (name.isascii() and name.isdigit() and len(name) <= MAX_DIGITS):
        raise EngineError("bad_versions", f"the server calls its weights {name[:60]!r}; a whole number is needed")
    return int(name)


def version_spans(told: Sequence[VersionSpan]) -> tuple[tuple[int, int], ...]:
    """(version, number of tokens) of spans, which must be contiguous and start at the first token."""
    at = 0
    for span in told:
        if span.start != at or span.end < at:
            raise EngineError("bad_versions", f"span {span.start}..{span.end} of {span.version!r} where {at} was next")
        at = span.end
    return tuple((version_number(span.version), span.end - span.start) for span in told)
