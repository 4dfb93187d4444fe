"""Block keys: a number for every whole block of a context, computed from everything up to the block's end.

A key is the sum of all tokens up to there, each times a fixed random number of its position, modulo 2^64: one pass of
numpy, whatever the number of blocks. Two different prefixes have the same key with a probability of about 1 in 2^32.
Callers must tolerate this.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from ramify.core.segment import Ids_T

MASK: Final = (1 << 64) - 1


class BlockKeys:
    """Keys of blocks of `block_size` tokens, 1 or more. If the number is even, two tokens are read at a time as 64
    bits, which is faster."""

    def __init__(self, block_size: int) -> None:
        self._per_word = 1 if block_size % 2 else 2
        """Tokens per word."""
        self._word = np.uint32 if block_size % 2 else np.uint64
        self._num_words = block_size // self._per_word
        """Words per block."""
        self._weights, self._starts = _weights(0), np.arange(0)

    def of(self, ids: Ids_T, *, after: Sequence[int] = ()) -> list[int]:
        """Keys of the blocks of `ids` (T,) int32 after the first blocks, whose keys are `after`."""
        per_word, num_words = self._per_word, self._num_words
        first, end = len(after) * num_words, len(ids) // (per_word * num_words) * num_words
        if end <= first:
            return []
        if len(self._weights) < end:
            self._weights, self._starts = _weights(2 * end), np.arange(0, 2 * end, num_words)
        words = np.ascontiguousarray(ids[per_word * first : per_word * end], np.int32).view(self._word)
        blocks = np.add.reduceat(words * self._weights[first:end], self._starts[: (end - first) // num_words])
        keys: list[int] = blocks.cumsum().tolist()
        return [(after[-1] + key) & MASK for key in keys] if after else keys


def _weights(number: int) -> npt.NDArray[np.uint64]:
    """Odd random numbers, the same in every process; a shorter list is the beginning of a longer one."""
    drawn = np.random.default_rng(0).integers(0, 1 << 63, size=number, dtype=np.uint64)
    return drawn * np.uint64(2) + np.uint64(1)
