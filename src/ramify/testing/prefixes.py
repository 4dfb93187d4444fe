"""KnownPrefixes: what a model's key-value cache would still hold, counted in whole blocks.

A call leaves the keys and values of its context and of all its sampled tokens but the last (`docs/concepts/growth.md`).
Only hashes of the most recently used blocks are kept, so memory is bounded.
"""

from collections import OrderedDict

from ramify.core.segment import Ids_T
from ramify.engines.fleet.block_keys import BlockKeys

MAX_BLOCKS = 1 << 16


class KnownPrefixes:
    """Prefixes seen before, in blocks of `block_size` tokens; 0 = no prefix is ever known."""

    def __init__(self, block_size: int, *, max_blocks: int = MAX_BLOCKS) -> None:
        self._block_size = block_size
        self._keys = BlockKeys(block_size) if block_size else None
        self._max_blocks = max_blocks
        self._seen: OrderedDict[int, None] = OrderedDict()

    def num_known(self, ids: Ids_T) -> int:
        """Length of the longest known prefix of `ids` without its last token, in whole blocks."""
        num_blocks = 0
        for key in self._keys.of(ids[:-1]) if self._keys else ():
            if key not in self._seen:
                break
            self._seen.move_to_end(key)
            num_blocks += 1
        return num_blocks * self._block_size

    def add(self, ids: Ids_T) -> None:
        """Add the prefixes of `ids`, which have been computed."""
        for key in self._keys.of(ids) if self._keys else ():
            self._seen[key] = None
            self._seen.move_to_end(key)
        while len(self._seen) > self._max_blocks:
            self._seen.popitem(last=False)

    def clear(self) -> None:
        """Forget everything: the cached keys and values were those of other weights."""
        self._seen.clear()
