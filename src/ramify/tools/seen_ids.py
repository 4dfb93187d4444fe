"""SeenIds: the ids used in a long file, each with its first line, in little memory.

A hash table of 64-bit digests with open addressing: 21 to 43 bytes per id (a dictionary takes 150). In about one of a
hundred thousand files with 20 million ids, two different ids have the same digest; the second is then called a
duplicate.
"""

import hashlib
from array import array
from typing import Final

SMALLEST: Final = 1024
"""Slots of an empty table; a power of two."""


class SeenIds:
    """Ids and the lines in which they came first."""

    def __init__(self) -> None:
        self._digests = _zeros(SMALLEST)
        """0 = a free slot."""
        self._lines = _zeros(SMALLEST)
        self._num_ids = 0

    def __len__(self) -> int:
        return self._num_ids

    def first_line(self, uid: str, line: int) -> int:
        """The line in which `uid` came first. If `uid` is new, `line` is stored and returned."""
        if 4 * self._num_ids >= 3 * len(self._digests):
            self._grow()
        digest = int.from_bytes(hashlib.blake2b(uid.encode(), digest_size=8).digest(), "big") or 1
        place = self._place(digest)
        if not self._digests[place]:
            self._digests[place], self._lines[place] = digest, line
            self._num_ids += 1
        return self._lines[place]

    def _place(self, digest: int) -> int:
        """The slot of a digest, or the free slot that it would take."""
        last = len(self._digests) - 1
        place = digest & last
        while self._digests[place] not in (0, digest):
            place = (place + 1) & last
        return place

    def _grow(self) -> None:
        digests, lines = self._digests, self._lines
        self._digests, self._lines = _zeros(2 * len(digests)), _zeros(2 * len(digests))
        for digest, line in zip(digests, lines, strict=True):
            if digest:
                place = self._place(digest)
                self._digests[place], self._lines[place] = digest, line


def _zeros(number: int) -> "array[int]":
    return array("Q", bytes(8 * number))
