"""Codec: text <-> ids of one tokenizer, with an identity.

All that grows on a tree has one codec; a judge's own contexts may have another (`Tree.codecs`). Text is derived from
ids, never the other way round once a model has sampled them. `ByteCodec` serves text-only engines: splits, viewer and
store work unchanged, while token exports refuse it (`is_exact` is false).
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
        """Hash of the tokenizer's definition: two codecs with one hash give the same ids."""
        ...

    @property
    def vocab_size(self) -> int:
        """Number of ids, added tokens included."""
        ...

    @property
    def eos_id(self) -> int: ...

    @property
    def is_exact(self) -> bool:
        """Whether ids are those of the sampling model, so that token exports may use them."""
        ...

    def encode(self, text: str, *, allow_special: bool = False) -> list[int]:
        """Ids of `text`; no token is added. Text that spells a control token becomes one only if `allow_special`."""
        ...

    def decode(self, ids: Iterable[int]) -> str:
        """Text of `ids`; bytes that are no UTF-8 become U+FFFD."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes one id stands for (control tokens: their spelling)."""
        ...


@dataclass(frozen=True, slots=True)
class ByteCodec:
    """UTF-8 bytes as ids 0..255, and 256 as the end of a sequence, which has no text."""

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
    """The bytes of a run of ids, unreplaced: what stop words and character borders are looked for in."""
    return b"".join(codec.token_bytes(int(i)) for i in ids)
