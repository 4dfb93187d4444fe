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
