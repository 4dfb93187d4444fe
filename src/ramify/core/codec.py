"""Codec: text <-> ids of one tokenizer, with an identity.

Everything that grows on a tree has one codec; a judge's own contexts may have another (`Tree.codecs`). Text is derived
from ids. Ids that a model sampled are never derived from text. `ByteCodec` serves text-only engines: splits, viewer and
store work unchanged, but token exports raise an error (`is_exact` is false).
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np


class Codec(Protocol):
    """Encode text and decode ids of one tokenizer. Pure; picklable."""

    @property
    def name(self) -> str: ...

    @property
    def sha256(self) -> str:
        """Hash of the tokenizer's definition. Two codecs with the same hash give the same ids."""
        ...

    @property
    def vocab_size(self) -> int:
        """Number of ids, including added tokens."""
        ...

    @property
    def eos_id(self) -> int: ...

    @property
    def is_exact(self) -> bool:
        """Whether the ids are those of the sampling model, so token exports may use them."""
        ...

    def encode(self, text: str, *, allow_special: bool = False) -> list[int]:
        """Ids of `text`, with no token added. Text that spells an added token becomes one only if
        `allow_special`, whether the vocabulary calls the token special or not; white space, and words that the model's
        folder declares, are ordinary text."""
        ...

    def decode(self, ids: Iterable[int]) -> str:
        """Text of `ids`. Invalid UTF-8 becomes U+FFFD."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of one id. For a control token: its spelling."""
        ...


@dataclass(frozen=True, slots=True)
class ByteCodec:
    """UTF-8 bytes as ids 0..255; 256 is the end of a sequence and has no text."""

    is_exact: bool = False

    @property
    def name(self) -> str:
        return "bytes"

    @property
    def sha256(self) -> str:
        return hashlib.sha256(b"ramify byte codec: utf-8 bytes, 256 = end").hexdigest()

    @property
    def vocab_size(self) -> int:
        return 257

    @property
    def eos_id(self) -> int:
        return 256

    def encode(self, text: str, *, allow_special: bool = False) -> list[int]:
        return list(text.encode("utf-8", errors="replace"))

    def decode(self, ids: Iterable[int]) -> str:
        given = np.fromiter(ids, np.int32)
        return given[given < 256].astype(np.uint8).tobytes().decode("utf-8", errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([token_id]) if token_id < 256 else b""


def character_width(lead: int) -> int:
    """Number of bytes of the UTF-8 character that begins with byte `lead`; 1 for a byte that begins none."""
    if 0xC2 <= lead < 0xE0:
        return 2
    if 0xE0 <= lead < 0xF0:
        return 3
    return 4 if 0xF0 <= lead < 0xF5 else 1


def num_unfinished_bytes(data: bytes) -> int:
    """Number of bytes at the end of `data` that begin a UTF-8 character without completing it (0 to 3)."""
    for back in range(1, min(3, len(data)) + 1):
        byte = data[-back]
        if byte & 0b1100_0000 != 0b1000_0000:
            return back if character_width(byte) > back else 0
    return 0


def joined_bytes(codec: Codec, ids: Sequence[int]) -> bytes:
    """The bytes of a run of ids, with invalid UTF-8 kept. Stop words and character borders are searched in them."""
    return b"".join(codec.token_bytes(int(i)) for i in ids)
