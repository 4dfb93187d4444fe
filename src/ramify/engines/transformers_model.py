# pyright: reportMissingImports=false
# torch and transformers are not part of the development set-up; `engines.local` says how to get them.
"""Transformers model: an unmodified Hugging Face causal language model, with keys and values held in slots.

Owns the weights and the slots' buffers; knows nothing of requests, sampling or text. The model gets three things: a
cache that stores every token's keys and values at its slot and position, a mask that shows each token its own slot up
to itself, and its positions. Padding is written to column 0 of a buffer, which is never read. Invariant: a token's
logits are those of the model without any cache, up to rounding. A trial at load time checks this; a model that fails it
is rejected.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from inspect import signature
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ramify.core.errors import ConfigError
from ramify.engines.model_folder import SERVE_IT, ModelFolder, first_line
from ramify.engines.slot_model import Chunk, Indices, Rows

Floats = npt.NDArray[np.float32]

GROWTH = 128
"""Minimum number of positions that the buffers grow by; each growth also doubles them."""

MAX_SPREAD = 1.25
"""Maximum rows computed per row requested: gaps between slots are computed as padding up to this ratio, so that buffers
are read in place."""

MAX_SINGLE, MAX_GATHERED = 64, 8192
"""Limits for computing chunk tokens as rows beside the decoding rows: most chunk tokens, and most positions copied for
it (rows times width). One pass costs less than two: 1.2 and 1.3 times the tokens per CPU second on the whole and the
sampled lengths of `bench/local_batching.py`; 32 gain less, 128 gain no more."""

TRIAL = 12
"""Number of tokens in the trial that a model has to pass."""


@dataclass(frozen=True, slots=True, eq=False)
class _Place:
    """Where B sequences of L tokens are written, and which positions they may see."""

    slots: torch.Tensor
    """(B, 1)"""
    columns: torch.Tensor
    """(B, L) position + 1; 0 = padding."""
    seen: slice | torch.Tensor
    """The slots again, as a slice if they are neighbours: then they are read in place, not copied."""
    width: int
    """Number of positions seen."""

    def read(self, buffer: torch.Tensor) -> torch.Tensor:
        """(B, H, width, D): the part of a (S, H, 1 + T, D) buffer that the sequences may see."""
        held = buffer[:, :, 1 : self.width + 1]
        return held[self.seen] if isinstance(self.seen, slice) else held.index_select(0, self.seen)


class SlotCache:
    """The cache that the model uses. It is duck-typed: `update`, and the few sizes that models ask for.

    Sizes are zero, because rows differ in length. The model gets everything that depends on sizes (mask, positions)
    directly.
    """

    is_compileable = False
    is_initialized = True
    is_sliding = ()
    layers = ()

    def __init__(self, num_slots: int) -> None:
        self._num_slots = num_slots
        self._num_columns = 0
        self._held: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._place: _Place | None = None

    def at(self, place: _Place, most: int) -> "SlotCache":
        """This cache, set up for one forward pass over `place`. Buffers never grow beyond `most` positions."""
        self._place = place
        if place.width >= self._num_columns:
            self._num_columns = 1 + min(most, place.width + max(place.width, GROWTH))
        return self

    def update(
        self, keys: torch.Tensor, values: torch.Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write (B, H, L, D) keys and values; returns those that the sequences may see, (B, H, width, D)."""
        assert self._place is not None
        place, fresh = self._place, (keys, values)
        held = self._held.get(layer_idx) or (self._buffer(keys, 0), self._buffer(values, 0))
        if held[0].shape[2] < self._num_columns:
            held = (self._grown(held[0]), self._grown(held[1]))
        self._held[layer_idx] = held
        for buffer, new in zip(held, fresh, strict=True):
            buffer[place.slots, :, place.columns] = new.transpose(1, 2)
        return place.read(held[0]), place.read(held[1])

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0

    def get_query_offset(self, layer_idx: int = 0) -> int:
        return 0

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        return (self._place.width if self._place is not None else query_length), 0

    def copy(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` positions of one slot to another."""
        for buffers in self._held.values():
            for buffer in buffers:
                buffer[target, :, 1 : length + 1] = buffer[source, :, 1 : length + 1]

    def clear(self) -> None:
        """Free all memory."""
        self._held.clear()
        self._num_columns = 0

    def _buffer(self, like: torch.Tensor, num_columns: int) -> torch.Tensor:
        return like.new_zeros(self._num_slots, like.shape[1], num_columns, like.shape[3])

    def _grown(self, buffer: torch.Tensor) -> torch.Tensor:
        return torch.cat((buffer, self._buffer(buffer, self._num_columns - buffer.shape[2])), dim=2)


class TransformersModel:
    """The model of a folder with `num_slots` slots. Implements `SlotModel`. Not thread-safe.

    `device` None = a GPU if there is one. `dtype` None = float32 on a CPU, the folder's own elsewhere. Buffers grow
    with the longest context in use. Raises `ConfigError` for weights that cannot be read and for a model that fails the
    trial.
    """

    def __init__(
        self, folder: ModelFolder, *, num_slots: int = 64, device: str | None = None, dtype: str | None = None
    ) -> None:
        self.num_slots = num_slots
        self.context_length = folder.context_length
        self.vocab_size = folder.vocab_size
        self._device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        self._network = folder.network(dtype or ("float32" if self._device.type == "cpu" else "auto")).to(self._device)
        self._cache = SlotCache(num_slots)
        takes_keep = "logits_to_keep" in signature(self._network.forward).parameters
        self._options = {"logits_to_keep": 1} if takes_keep else {}
        self._pass_trial(folder)

    def load(self, source: str | Path | Mapping[str, torch.Tensor]) -> None:
        """Replace the weights in place by those of a folder or a state dict. What the slots hold is not recomputed.

        Raises `ConfigError`, before anything is changed, unless names and shapes are the model's. For tied tensors one
        name is enough.
        """
        is_given = isinstance(source, Mapping)
        given = source if is_given else ModelFolder(source, self.context_length).network("auto").state_dict()
        own = self._network.state_dict()
        for name, tensor in given.items():
            if name not in own or own[name].shape != tensor.shape:
                wanted = tuple(own[name].shape) if name in own else "no such tensor"
                raise ConfigError(
                    f"weights of another shape: {name!r} is {tuple(tensor.shape)}, the model has {wanted}"
                )
        covered = {own[name].data_ptr() for name in given}
        missing = [name for name, tensor in own.items() if tensor.data_ptr() not in covered]
        if missing:
            raise ConfigError(f"weights without {missing[0]!r}; {len(missing)} of the model's tensors are missing")
        with torch.no_grad():
            for name, tensor in given.items():
                own[name].copy_(tensor)

    def clear(self) -> None:
        """Drop all keys and values and free their memory."""
        self._cache.clear()

    def offload(self) -> None:
        """Move the weights to the host's memory and drop all keys and values."""
        self._cache.clear()
        self._network.to("cpu")

    def onload(self) -> None:
        """Undo `offload`."""
        self._network.to(self._device)

    @torch.inference_mode()
    def copy(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` positions of slot `source` to slot `target`."""
        self._cache.copy(source, target, length)

    @torch.inference_mode()
    def forward(self, rows: Rows, chunks: Sequence[Chunk]) -> Floats:
        """Compute R single tokens and C chunks; see `SlotModel.forward`."""
        num_single = sum(len(chunk.ids) for chunk in chunks)
        width = max([*rows.positions.tolist(), *(chunk.start + len(chunk.ids) for chunk in chunks)])
        is_small = num_single <= MAX_SINGLE and (len(rows.ids) + num_single) * width <= MAX_GATHERED
        if chunks and len(rows.ids) and is_small:
            return self._mixed(rows, chunks)
        logits = np.empty((len(rows.ids) + len(chunks), self.vocab_size), np.float32)
        if len(rows.ids):
            logits[: len(rows.ids)] = self._decoded(rows)
        for indices in _of_like_size(chunks):
            logits[len(rows.ids) + np.array(indices)] = self._entered([chunks[i] for i in indices])
        return logits

    def _decoded(self, rows: Rows) -> Floats:
        """(R, V) logits of single tokens. If the slots lie close together, the slots between them are computed as
        padding."""
        slots, places = rows.slots, np.arange(len(rows.slots))
        spread = int(slots[-1] - slots[0]) + 1
        if spread <= MAX_SPREAD * len(slots):
            places, slots = slots - slots[0], np.arange(slots[0], slots[-1] + 1)
        ids, columns = np.zeros((2, len(slots), 1), np.int64)
        ids[places, 0], columns[places, 0] = rows.ids, rows.positions + 1
        return self._computed(slots, ids, columns)[places]

    def _mixed(self, rows: Rows, chunks: Sequence[Chunk]) -> Floats:
        """(R + C, V) logits in one pass with every token as a row of its own. A token of a chunk sees the chunk's
        earlier tokens, because all are written before any is read."""
        ends = np.cumsum([len(rows.ids), *(len(c.ids) for c in chunks)])
        slots = np.concatenate((rows.slots, *(np.full(len(c.ids), c.slot) for c in chunks)))
        ids = np.concatenate((rows.ids, *(c.ids for c in chunks)), dtype=np.int64)
        starts = np.concatenate((rows.positions, *(np.arange(c.start, c.start + len(c.ids)) for c in chunks)))
        logits = self._computed(slots, ids[:, None], starts[:, None] + 1)
        return logits[[*range(len(rows.ids)), *(ends[1:] - 1)]]

    def _entered(self, chunks: Sequence[Chunk]) -> Floats:
        """(C, V) logits of the last tokens of chunks; shorter chunks are padded at the front."""
        ids, columns = np.zeros((2, len(chunks), max(len(c.ids) for c in chunks)), np.int64)
        for row, chunk in enumerate(chunks):
            ids[row, -len(chunk.ids) :] = chunk.ids
            columns[row, -len(chunk.ids) :] = np.arange(len(chunk.ids)) + chunk.start + 1
        return self._computed(np.array([c.slot for c in chunks]), ids, columns)

    def _computed(self, slots: Indices, ids: npt.NDArray[np.int64], columns: npt.NDArray[np.int64]) -> Floats:
        """(B, V) logits of the last token of each row of (B, L) ids; row b belongs to slot `slots[b]`."""
        where = self._tensor(slots)
        seen = slice(int(slots[0]), int(slots[-1]) + 1) if (np.diff(slots) == 1).all() else where
        place = _Place(where[:, None], self._tensor(columns), seen, int(columns.max()))
        positions = (place.columns - 1).clamp_(min=0)
        dtype = self._network.dtype
        ahead = torch.arange(place.width, device=self._device) > positions[:, None, :, None]
        mask = torch.zeros(ahead.shape, dtype=dtype, device=self._device).masked_fill_(ahead, torch.finfo(dtype).min)
        output = self._network(
            input_ids=self._tensor(ids),
            attention_mask=mask,
            position_ids=positions,
            past_key_values=self._cache.at(place, self.context_length),
            use_cache=True,
            **self._options,
        )
        return output.logits[:, -1].float().cpu().numpy()

    def _tensor(self, array: npt.NDArray[np.int64]) -> torch.Tensor:
        return torch.from_numpy(array).to(self._device)

    def _pass_trial(self, folder: ModelFolder) -> None:
        """Compare a few tokens with and without slots. Boundary: if the model raises anything, it cannot be run."""
        num = min(TRIAL, self.context_length)
        ids = (np.arange(1, num + 1) * 7919 % self.vocab_size).astype(np.int32)
        try:
            with torch.inference_mode():
                whole = self._network(input_ids=self._tensor(ids.astype(np.int64))[None], use_cache=False).logits[0, -1]
            wanted, found = whole.float().cpu().numpy(), self._by_slots(ids)
        except Exception as error:
            raise ConfigError(
                f"the model in {folder} ({type(self._network).__name__}) does not run with a cache of slots: "
                f"{first_line(error)}; {SERVE_IT}"
            ) from error
        allowed = (1e-3 if self._network.dtype == torch.float32 else 1e-1) * float(np.abs(wanted - wanted.mean()).max())
        difference = float(np.abs(wanted - found).max())
        if not difference <= allowed:
            raise ConfigError(
                f"the model in {folder} ({type(self._network).__name__}) computes something else with a cache "
                f"of slots than without: logits of {num} tokens differ by {difference:.3g}; {SERVE_IT}"
            )

    def _by_slots(self, ids: npt.NDArray[np.int32]) -> Floats:
        """(V,) logits after `ids`: one chunk, then single tokens, in the last slot."""
        slot, half = self.num_slots - 1, len(ids) // 2
        nothing = np.empty(0, np.intp)
        if half:
            self.forward(Rows(nothing, nothing, ids[:0]), [Chunk(slot, 0, ids[:half])])
        logits = np.empty((1, 0), np.float32)
        for position in range(half, len(ids)):
            logits = self.forward(Rows(np.array([slot]), np.array([position]), ids[position : position + 1]), ())
        return logits[0]


def _of_like_size(chunks: Sequence[Chunk]) -> Iterator[list[int]]:
    """Groups of indices of chunks that are computed together: their sizes differ by less than a factor of two."""
    order = sorted(range(len(chunks)), key=lambda i: len(chunks[i].ids))
    for _, group in groupby(order, key=lambda i: len(chunks[i].ids).bit_length()):
        yield sorted(group, key=lambda i: chunks[i].slot)
