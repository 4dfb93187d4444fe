"""Slot model: the interface of a model to the batching loop.

The keys and values of this causal model live in slots: one sequence per slot, addressed by slot and position. So
sequences can join, leave and fork at any step. A fork copies the first positions of a slot.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ramify.core.segment import Ids_T

Indices = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """R slots that compute one token each, in ascending order."""

    slots: Indices
    """(R,)"""
    positions: Indices
    """(R,) position of each token in its slot."""
    ids: Ids_T
    """(R,)"""


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """Tokens that one slot computes, from position `start` on."""

    slot: int
    start: int
    ids: Ids_T


@dataclass(frozen=True, slots=True, eq=False)
class StepTokens:
    """The N tokens of a step: those of the rows, then those of each chunk."""

    ids: Ids_T
    """(N,)"""
    slots: Indices
    """(N,) slot of each token."""
    positions: Indices
    """(N,) position of each token in its slot."""
    ends: Indices
    """(1 + C,) where the first chunk begins, and where each ends."""
    last: Indices
    """(R + C,) tokens whose logits are wanted: each row's, and the last of each chunk."""

    @classmethod
    def of(cls, rows: Rows, chunks: Sequence[Chunk]) -> "StepTokens":
        ends = np.cumsum([len(rows.ids), *(len(c.ids) for c in chunks)])
        return cls(
            ids=np.concatenate((rows.ids, *(c.ids for c in chunks))),
            slots=np.concatenate((rows.slots, *(np.full(len(c.ids), c.slot) for c in chunks))),
            positions=np.concatenate((rows.positions, *(np.arange(c.start, c.start + len(c.ids)) for c in chunks))),
            ends=ends,
            last=np.concatenate((np.arange(len(rows.ids)), ends[1:] - 1)),
        )


class SlotModel(Protocol):
    """A causal model with a key/value cache of `num_slots` slots of `context_length` positions."""

    @property
    def num_slots(self) -> int: ...

    @property
    def context_length(self) -> int: ...

    @property
    def vocab_size(self) -> int: ...

    def forward(self, rows: Rows, chunks: Sequence[Chunk]) -> npt.NDArray[np.float32]:
        """Compute R rows and C chunks and write their keys and values. Returns (R + C, V) logits: of every row's token,
        then of every chunk's last token. Each slot appears once, rows and chunks are not both empty, and a slot's
        earlier positions must already be there."""
        ...

    def copy(self, source: int, target: int, length: int) -> None:
        """Copy the keys and values of the first `length` positions of one slot to another."""
        ...
