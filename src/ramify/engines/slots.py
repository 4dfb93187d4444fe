"""Slots: which tokens the cache of an in-process engine holds, and who may use them next.

Owns the ids behind the keys and values of every slot, and chooses a slot for a new context: it continues a slot if
nothing is lost, copies where a branch forks, and evicts the least recently used slot if none is empty. It computes
nothing and starts nothing. Invariant: the first `held[slot]` ids of a slot are exactly those whose keys and values it
has; an active slot is never taken.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ramify.core.segment import Ids_T
from ramify.engines.slot_model import Indices

Hashes = npt.NDArray[np.uint64]

NUM_SPARED_STEPS = 8
"""Number of steps for which a slot is kept for the request that may continue in it; see `spare`.

Measured: after a countdown call the runner comes back 2 to 8 steps later. Then 128 chains on 64 slots compute 200 of
43,000 context tokens a second time; without sparing they compute 20,000, in twice the CPU time.
"""

_LOG2_REMEMBERED = 18


@dataclass(frozen=True, slots=True)
class TakenSlot:
    """Where a context was put."""

    slot: int
    source: int
    """Copy the first `num_cached` positions from this slot; the same slot = they are already there."""
    num_cached: int
    """Context tokens whose keys and values need not be computed: at most all but the last."""
    is_eviction: bool
    """Whether tokens of an earlier request were dropped for it."""
    num_recomputed: int
    """Tokens after the cached ones that a slot once held and an eviction dropped."""


class SlotTable:
    """The ids in `num_slots` slots of `context_length` positions. Only the batching loop mutates it."""

    def __init__(self, num_slots: int, context_length: int) -> None:
        self.ids = np.zeros((num_slots, context_length), np.int32)
        """(S, T): first the tokens held, then those known but not yet computed."""
        self.held = np.zeros(num_slots, np.intp)
        """(S,) leading tokens whose keys and values the slot has."""
        self.known = np.zeros(num_slots, np.intp)
        """(S,) known tokens of the request that is active in the slot."""
        self.is_active = np.zeros(num_slots, np.bool_)
        self.num_steps = 0
        """Steps of the loop so far, including those in which every request waited for a spared slot."""
        self._spared_until = np.zeros(num_slots, np.int64)
        self._last_used = np.zeros(num_slots, np.int64)
        self._clock = 0
        self._evicted = _Remembered(context_length)

    @property
    def num_open(self) -> int:
        """Slots that any context may take: idle and not spared."""
        return int((~self.is_active & (self._spared_until <= self.num_steps)).sum())

    def is_continued_by(self, context: Ids_T) -> bool:
        """Whether `context` continues the tokens of an idle slot, so that giving it that slot drops nothing."""
        is_idle = ~self.is_active & (self.held > 0)
        if not is_idle.any():
            return False
        usable = np.minimum(self._shared(context), self.held)
        best = usable.max()
        return bool((is_idle & (usable == self.held) & (usable == best)).any())

    def is_being_computed(self, context: Ids_T) -> bool:
        """Whether a slot that is still reading its prompt will soon hold most of what `context` lacks."""
        is_reading = self.is_active & (self.known - self.held > 1)
        if not is_reading.any():
            return False
        shared = self._shared(context)
        now = int(np.minimum(shared, self.held).max())
        soon = int(np.minimum(shared, self.known)[is_reading].max())
        return 2 * (min(soon, len(context) - 1) - now) >= len(context) - now

    def take(self, context: Ids_T) -> TakenSlot:
        """Make a slot active for `context`; returns what must be copied. There must be a free slot."""
        usable = np.minimum(self._shared(context), self.held)
        is_lossless = ~self.is_active & (usable == self.held)
        source = int((2 * usable + is_lossless).argmax())
        num_cached = min(int(usable[source]), len(context) - 1)
        slot = source if num_cached and is_lossless[source] else self._given_up(source if num_cached else None)
        kept = int(usable[slot])
        is_eviction = bool(self.held[slot] > kept)
        num_recomputed = self._evicted.count(context[:-1], num_cached)
        if is_eviction:
            self._evicted.add(self.ids[slot, : self.held[slot]], kept)
        self.ids[slot, : len(context)] = context
        self.held[slot] = num_cached
        self.known[slot] = len(context)
        self.is_active[slot] = True
        if num_cached:
            self._use(source)
        return TakenSlot(slot, source, num_cached, is_eviction, num_recomputed)

    def release(self, slot: int) -> None:
        """The request in `slot` has ended. Other requests may continue or copy what the slot holds until it is
        evicted."""
        self.is_active[slot] = False
        self._spared_until[slot] = 0
        self._use(slot)

    def spare(self, slot: int) -> None:
        """Protect an idle slot from eviction for some steps.

        This is for a chain that calls a tool and comes back. If its slot were given away meanwhile and there are more
        chains than slots, each of its turns would recompute its whole context.
        """
        self._spared_until[slot] = self.num_steps + NUM_SPARED_STEPS

    def forget(self) -> None:
        """All keys and values are invalid; active slots recompute their contexts."""
        self.held[:] = 0
        self._evicted.clear()

    def _shared(self, context: Ids_T) -> Indices:
        """(S,) number of leading ids each slot shares with `context`, held or not."""
        is_equal = self.ids[:, : len(context)] == context
        return np.where(is_equal.all(axis=1), len(context), is_equal.argmin(axis=1))

    def _given_up(self, source: int | None) -> int:
        """An empty slot, or else the least recently used open one, or else `source`, or else a spared slot."""
        age = np.where(self.held == 0, -1, self._last_used)
        if source is not None:
            age[source] = self._clock + 1
        age[self._spared_until > self.num_steps] = self._clock + 2
        age[self.is_active] = np.iinfo(np.int64).max
        return int(age.argmin())

    def _use(self, slot: int) -> None:
        self._clock += 1
        self._last_used[slot] = self._clock


class _Remembered:
    """Prefixes that were held once: a table of bounded size with one hash per token. New entries overwrite old ones.

    The hash of a prefix is the sum of its ids times fixed random odd numbers, one per position, modulo 2**64.
    """

    def __init__(self, context_length: int) -> None:
        self._factors = np.random.Philox(key=1).random_raw(context_length) | np.uint64(1)
        self._table = np.zeros(1 << _LOG2_REMEMBERED, np.uint64)

    def add(self, ids: Ids_T, start: int) -> None:
        """Remember the prefixes of `ids` that end at or after position `start`."""
        hashes = self._hashes(ids)[start:]
        self._table[_places(hashes)] = hashes

    def count(self, ids: Ids_T, start: int) -> int:
        """Number of tokens from `start` on whose prefixes are all remembered."""
        hashes = self._hashes(ids)[start:]
        is_known = self._table[_places(hashes)] == hashes
        return len(hashes) if is_known.all() else int(is_known.argmin())

    def clear(self) -> None:
        self._table[:] = 0

    def _hashes(self, ids: Ids_T) -> Hashes:
        return np.cumsum((ids.astype(np.uint64) + np.uint64(1)) * self._factors[: len(ids)], dtype=np.uint64)


def _places(hashes: Hashes) -> Hashes:
    return hashes >> np.uint64(64 - _LOG2_REMEMBERED)
