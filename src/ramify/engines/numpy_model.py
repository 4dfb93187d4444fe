"""Numpy model: a Qwen3 network in numpy alone, float32, with keys and values held in slots.

Owns the weights and the key/value cache; knows nothing of requests, sampling or text. Invariant (batch-invariant mode,
the default): a token's logits depend, bit for bit, only on its slot's tokens up to its position, because every product
has the same shape whatever else is computed. A weight matrix is applied to one row at a time, as one matrix-vector
product per row (a tile of 1 row). Keys come in blocks of `BLOCK`; the partial sums of the blocks are added in order of
position. A block that lies entirely ahead of a token adds exact zeros. Larger tiles of numpy were measured: they are no
faster at 8 and 64 rows, slower at 1 row, and with some of them the bits of a row depend on its place in the tile. Where
`fused_step` was built, it computes the same bits in less time.
"""

from collections.abc import Callable, Sequence
from ctypes import CDLL
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ramify.core.errors import ConfigError
from ramify.engines.fused_step import FusedStep, built
from ramify.engines.qwen3_weights import Floats, LayerWeights, Qwen3Shape, read_weights
from ramify.engines.slot_model import Chunk, Indices, Rows, StepTokens

BLOCK = 64
"""Keys per block in batch-invariant mode; 32, 64 and 128 cost the same within 10 % at 100 tokens of context."""


MAX_BOUNDED_SCORE = 50.0
"""If attention scores stay within this, the softmax need not subtract their maximum: sums of thousands of exp(50) are
far inside float32."""

MAX_RUNS = 4
"""Most runs of neighbouring slots that are read in place one by one; gathering 32 rows costs about as much as 5
runs."""


@dataclass(frozen=True, slots=True)
class _Group:
    """Rows that attend to `slots` of the cache: one row per slot, or all rows to a single slot."""

    rows: slice
    slots: slice | Indices
    """A slice is read in place, indices are gathered."""


@dataclass(frozen=True, slots=True)
class _Plan:
    """Data shared by all layers of one forward pass; N tokens, W key positions."""

    rotation: npt.NDArray[np.complex64]
    """(N, 1, hd / 2)."""
    written: Indices
    """(N * 2 KV,) rows of a layer's flattened cache where the tokens' keys and values are written."""
    bias: Floats
    """(N, 1, 1, W): 0 up to a token's own position, minus infinity ahead of it."""
    block: int
    """Keys per block; W is a multiple of it."""
    groups: tuple[_Group, ...]


class NumpyModel:
    """The model of a Qwen3 folder (`config.json`, `*.safetensors` in bf16, f16 or f32) with `num_slots` cache slots.

    Implements `SlotModel`. Not thread-safe. Memory for keys and values is touched only when positions are used.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        num_slots: int = 64,
        context_length: int | None = None,
        is_batch_invariant: bool = True,
    ) -> None:
        self.shape = Qwen3Shape.read(Path(folder))
        self.num_slots = num_slots
        self.context_length = min(context_length or self.shape.context_length, self.shape.context_length)
        self._multiply: Callable[[Floats, Floats], Floats] = _row_by_row if is_batch_invariant else np.matmul
        self._block = BLOCK if is_batch_invariant else None
        self._rotations = _rotations(self.shape, self.context_length)
        self._ones = np.ones(max(BLOCK, self.context_length), np.float32)
        self._library = built() if is_batch_invariant else None
        self._cache = self._empty()
        self.load(folder)

    @property
    def vocab_size(self) -> int:
        return self.shape.vocab_size

    def load(self, folder: str | Path) -> None:
        """Replace the weights by those of `folder`. What the slots hold is not recomputed. Raises `ConfigError` if the
        network there has another shape."""
        shape = Qwen3Shape.read(Path(folder))
        if shape != self.shape:
            raise ConfigError(f"weights of another shape in {str(folder)!r}: {shape!r}, not {self.shape!r}")
        weights = self._weights = read_weights(Path(folder), shape)
        self._is_bounded = all(_largest_score(layer, shape) <= MAX_BOUNDED_SCORE for layer in weights.layers)
        self.fuse(self._library)

    def fuse(self, library: CDLL | None) -> None:
        """Compute by this compiled library from now on, with the same bits; None = by numpy."""
        self._library, self._fused = library, None
        if library is not None:
            self._fused = FusedStep(
                library,
                self.shape,
                self._weights,
                cache=self._cache,
                rotations=self._rotations,
                ones=self._ones,
                block=BLOCK,
                is_bounded=self._is_bounded,
            )

    def clear(self) -> None:
        """Drop all keys and values."""
        self._cache = self._empty()
        self.fuse(self._library)

    def _empty(self) -> Floats:
        """(layer, slot, kv head: keys then values, position, head dim)"""
        shape = self.shape
        width = -(-self.context_length // BLOCK) * BLOCK
        return np.zeros((shape.num_layers, self.num_slots, 2 * shape.num_kv_heads, width, shape.head_dim), np.float32)

    def copy(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` positions of slot `source` to slot `target`."""
        self._cache[:, target, :, :length] = self._cache[:, source, :, :length]

    def forward(self, rows: Rows, chunks: Sequence[Chunk]) -> Floats:
        """Compute R single tokens and C chunks; see `SlotModel.forward`."""
        tokens = StepTokens.of(rows, chunks)
        if self._fused is not None:
            return self._fused.forward(tokens)
        plan = self._planned(tokens, rows, chunks)
        x = self._weights.embedding[tokens.ids]
        for index, layer in enumerate(self._weights.layers):
            x += self._attention(x, index, plan)
            x += self._mlp(x, layer)
        return self._multiply(_unit(x[tokens.last], self.shape.eps), self._weights.head)

    def _planned(self, tokens: StepTokens, rows: Rows, chunks: Sequence[Chunk]) -> _Plan:
        positions = tokens.positions
        num_heads, width = self._cache.shape[2:4]
        first = tokens.slots * (num_heads * width) + positions
        num_keys = int(positions.max()) + 1
        block = self._block or num_keys
        columns = np.arange(-(-num_keys // block) * block)
        return _Plan(
            rotation=self._rotations[positions][:, None],
            written=(first[:, None] + np.arange(num_heads) * width).reshape(-1),
            bias=np.where(columns <= positions[:, None], np.float32(0), np.float32(-np.inf))[:, None, None],
            block=block,
            groups=(*_runs(rows.slots), *_spans(tokens.ends, chunks)),
        )

    def _attention(self, x: Floats, index: int, plan: _Plan) -> Floats:
        shape, layer = self.shape, self._weights.layers[index]
        heads = self._multiply(_unit(x, shape.eps), layer.qkv).reshape(len(x), -1, shape.head_dim)
        turned = heads[:, : shape.num_heads + shape.num_kv_heads]
        turned /= _lengths(turned, shape.eps)
        turned *= layer.qk_norm
        turned_pairs = turned.view(np.complex64)
        turned_pairs *= plan.rotation
        cache = self._cache[index]
        cache.reshape(-1, shape.head_dim)[plan.written] = heads[:, shape.num_heads :].reshape(-1, shape.head_dim)
        mixed = self._mixed(heads[:, : shape.num_heads], cache, plan)
        return self._multiply(mixed, layer.out)

    def _mixed(self, queries: Floats, cache: Floats, plan: _Plan) -> Floats:
        """Values weighted by the softmax of the scores: (N, H, hd) -> (N, H * hd)."""
        shape = self.shape
        num, num_kv, width = len(queries), shape.num_kv_heads, plan.bias.shape[-1]
        blocks = (num, num_kv, shape.num_heads // num_kv, width // plan.block)
        queries = queries.reshape(*blocks[:3], 1, shape.head_dim, 1)
        scores = np.empty((*blocks, plan.block, 1), np.float32)
        parts = np.empty((*blocks, 1, shape.head_dim), np.float32)
        held = [_blocks(cache[group.slots, :, :width], plan.block) for group in plan.groups]
        for group, blocked in zip(plan.groups, held, strict=True):
            np.matmul(blocked[:, :num_kv], queries[group.rows], out=scores[group.rows])
        shares = self._exponentials(scores.reshape(*blocks[:3], width), plan.bias)
        shares = shares.reshape(*blocks, 1, plan.block)
        for group, blocked in zip(plan.groups, held, strict=True):
            np.matmul(shares[group.rows], blocked[:, num_kv:], out=parts[group.rows])
        sums = _in_order(_dots(shares, self._ones[: plan.block]))
        return (_in_order(parts) / sums[..., None]).reshape(num, -1)

    def _exponentials(self, scores: Floats, bias: Floats) -> Floats:
        """exp(scores + bias), minus their maximum over the last axis first if that is needed. Mutates `scores`."""
        scores += bias
        if not self._is_bounded:
            scores -= scores.max(axis=-1, keepdims=True)
        return np.exp(scores, out=scores)

    def _mlp(self, x: Floats, layer: LayerWeights) -> Floats:
        both = self._multiply(_unit(x, self.shape.eps), layer.gate_up)
        half_gate, up = both[:, : both.shape[1] // 2], both[:, both.shape[1] // 2 :]
        silu = np.tanh(half_gate)  # x / (1 + exp(-x)) = x / 2 * (1 + tanh(x / 2))
        silu += 1
        silu *= half_gate
        silu *= up
        return self._multiply(silu, layer.down)


def _row_by_row(x: Floats, weight: Floats) -> Floats:
    """(N, K) @ (K, M) as N matrix-vector products, so that a row's result cannot depend on other rows."""
    return np.matmul(x[:, None], weight)[:, 0]


def _dots(x: Floats, y: Floats) -> Floats:
    """Dot products over the last axis, one BLAS dot each."""
    return np.matmul(x[..., None, :], y[..., None])[..., 0, 0]


def _lengths(x: Floats, eps: float) -> Floats:
    """(..., 1) Euclidean lengths over the last axis, including the `eps` of an RMS norm."""
    lengths = _dots(x, x)
    lengths += np.float32(eps * x.shape[-1])
    return np.sqrt(lengths, out=lengths)[..., None]


def _unit(x: Floats, eps: float) -> Floats:
    """Rows over the last axis scaled to length 1: RMS norm without its weight and its factor sqrt(size)."""
    return x / _lengths(x, eps)


def _in_order(parts: Floats) -> Floats:
    """Sum of the (N, KV, G, blocks, 1, ...) partial sums, first block first, so that trailing zeros change no bit."""
    total = parts[:, :, :, 0, 0]
    for block in range(1, parts.shape[3]):
        total = total + parts[:, :, :, block, 0]
    return total


def _blocks(cache: Floats, block: int) -> Floats:
    """View (S, heads, W, hd) as (S, heads, 1, W / block, block, hd)."""
    num_slots, num_heads, width, head_dim = cache.shape
    return cache.reshape(num_slots, num_heads, 1, width // block, block, head_dim)


def _runs(slots: Indices) -> tuple[_Group, ...]:
    """One group per run of neighbouring slots. If there are many runs, one group that gathers its slots."""
    if not len(slots):
        return ()
    edges = [0, *(np.flatnonzero(np.diff(slots) != 1) + 1).tolist(), len(slots)]
    if len(edges) > MAX_RUNS + 1:
        return (_Group(slice(0, len(slots)), slots),)
    return tuple(
        _Group(slice(start, end), slice(int(slots[start]), int(slots[start]) + end - start))
        for start, end in pairwise(edges)
    )


def _spans(ends: Indices, chunks: Sequence[Chunk]) -> tuple[_Group, ...]:
    """One group per chunk; `ends` are the first chunk's start and each chunk's end among the tokens."""
    return tuple(
        _Group(slice(int(start), int(end)), slice(chunk.slot, chunk.slot + 1))
        for (start, end), chunk in zip(pairwise(ends), chunks, strict=True)
    )


def _rotations(shape: Qwen3Shape, context_length: int) -> npt.NDArray[np.complex64]:
    """(T, hd / 2) complex numbers of length 1 that rotate a pair of a head by its position (RoPE). Angles are rounded
    as torch rounds them."""
    exponents = np.arange(0, shape.head_dim, 2, dtype=np.float32) / np.float32(shape.head_dim)
    frequencies = (1.0 / np.float32(shape.theta) ** exponents).astype(np.float32)
    angles = np.arange(context_length, dtype=np.float32)[:, None] * frequencies
    return (np.cos(angles) + 1j * np.sin(angles)).astype(np.complex64)


def _largest_score(layer: LayerWeights, shape: Qwen3Shape) -> float:
    """Upper bound of a layer's attention scores: queries and keys have length 1 before their norms' weights."""
    sizes = np.abs(layer.qk_norm)
    return float(sizes[: shape.num_heads].max() * sizes[shape.num_heads :].max())
