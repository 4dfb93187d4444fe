"""Slot model: what the batching loop needs of a model.

A causal model whose keys and values live in slots, one sequence a slot, named by slot and position. So sequences join,
leave and fork at any step: a fork is a copy of a slot's first positions.
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
    """R slots that compute one token each; slots rise."""

    slots: Indices
    """(R,)"""
    positions: Indices
    """(R,) where in its slot each token stands."""
    ids: Ids_T
    """(R,)"""


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """Tokens that one slot computes at positions `start` and following."""

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
        """Compute R rows and C chunks, each slot named once, not both empty; return (R + C, V) logits: of every row's
        token, then of every chunk's last. Writes their keys and values; a slot's earlier positions must be there."""
        ...

    def copy(self, source: int, target: int, length: int) -> None:
        """Copy the keys and values of the first `length` positions of one slot to another."""
        ...
