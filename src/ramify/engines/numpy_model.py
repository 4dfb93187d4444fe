"""Numpy model: a Qwen3 network in numpy alone, float32, with keys and values held in slots.

Owns the weights and the key/value cache; knows nothing of requests, sampling or text. Invariant (batch-invariant mode,
the default): a token's logits depend, bit for bit, only on its slot's tokens up to its position, because every product
has the same shape whatever else is computed. A weight matrix is applied to one row at a time, as one matrix-vector
product per row (a tile of 1 row). Keys come in blocks of `BLOCK`; the partial sums of the blocks are added in order of
position. A block that lies entirely ahead of a token adds exact zeros. Measurements of larger tiles: they are no faster
at 8 and 64 rows, slower at 1 row, and with some of them the bits of a row depend on its place in the tile.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, deserialize

from ramify.core.errors import ConfigError
from ramify.engines.slot_model import Chunk, Indices, Rows

Floats = npt.NDArray[np.float32]

BLOCK = 64
"""Keys per block in batch-invariant mode; 32, 64 and 128 cost the same within 10 % at 100 tokens of context."""


CLASSIFIER = "Qwen3ForSequenceClassification"
"""The architecture whose output is a score."""

MAX_BOUNDED_SCORE = 50.0
"""If attention scores stay within this, the softmax need not subtract their maximum: sums of thousands of exp(50) are
far inside float32."""

MAX_RUNS = 4
"""Most runs of neighbouring slots that are read in place one by one; gathering 32 rows costs about as much as 5
runs."""


@dataclass(frozen=True, slots=True)
class Qwen3Shape:
    """Sizes of a Qwen3 network, and the constants of its norms and rotations."""

    num_layers: int
    width: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    context_length: int
    eps: float
    theta: float
    head: str
    """Name of the output matrix: it gives logits of tokens, or the score of a classifier."""

    @classmethod
    def read(cls, folder: Path) -> "Qwen3Shape":
        """Read `config.json`. Raises `ConfigError` for a network that this file does not compute."""
        path = folder / "config.json"
        if not path.exists():
            raise ConfigError(f"no model in {str(folder)!r}: config.json is missing")
        config: dict[str, Any] = json.loads(path.read_bytes())
        rope: dict[str, Any] = config.get("rope_parameters") or config.get("rope_scaling") or {}
        _refuse_other_networks(config, rope, folder)
        return cls(
            num_layers=int(config["num_hidden_layers"]),
            width=int(config["hidden_size"]),
            num_heads=int(config["num_attention_heads"]),
            num_kv_heads=int(config["num_key_value_heads"]),
            head_dim=int(config["head_dim"]),
            vocab_size=int(config["vocab_size"]),
            context_length=int(config["max_position_embeddings"]),
            eps=float(config["rms_norm_eps"]),
            theta=float(rope.get("rope_theta", config.get("rope_theta", 10_000.0))),
            head=_head(config),
        )


def _head(config: Mapping[str, Any]) -> str:
    if CLASSIFIER in config.get("architectures", ()):
        return "score.weight"
    return "model.embed_tokens.weight" if config.get("tie_word_embeddings", False) else "lm_head.weight"


def _refuse_other_networks(config: Mapping[str, Any], rope: Mapping[str, Any], folder: Path) -> None:
    wanted: dict[str, tuple[Any, Any]] = {
        "model_type": (config.get("model_type"), "qwen3"),
        "hidden_act": (config.get("hidden_act"), "silu"),
        "attention_bias": (config.get("attention_bias", False), False),
        "use_sliding_window": (config.get("use_sliding_window", False), False),
        "rope_type": (rope.get("rope_type", "default"), "default"),
    }
    for name, (found, allowed) in wanted.items():
        if found != allowed:
            raise ConfigError(f"{folder.name!r} has {name}={found!r}; the numpy model computes {allowed!r} only")


@dataclass(frozen=True, slots=True)
class _Layer:
    """Weights of one layer, with the input dimension first. Each norm's weights are folded into the matrices after
    it."""

    qkv: Floats
    """(D, (H + 2 KV) * hd); within a head of q and k, the two values that are rotated together are neighbours."""
    qk_norm: Floats
    """(H + KV, hd); the query part includes the attention scale."""
    out: Floats
    gate_up: Floats
    """The gate times one half, then the up projection."""
    down: Floats


@dataclass(frozen=True, slots=True)
class _Weights:
    """All weights of a network."""

    embedding: Floats
    """(V, D)."""
    layers: tuple[_Layer, ...]
    head: Floats
    """(D, V), with the last norm folded in."""


@dataclass(frozen=True, slots=True)
class _Group:
    """Rows that attend to `slots` of the cache: one row per slot, or all rows to a single slot."""

    rows: slice
    slots: slice | Indices
    """A slice is read in place, indices are gathered."""


@dataclass(frozen=True, slots=True)
class _Plan:
    """Data shared by all layers of one forward pass; N tokens, W key positions."""

    ids: npt.NDArray[np.int32]
    rotation: npt.NDArray[np.complex64]
    """(N, 1, hd / 2)."""
    written: Indices
    """(N * 2 KV,) rows of a layer's flattened cache where the tokens' keys and values are written."""
    bias: Floats
    """(N, 1, 1, W): 0 up to a token's own position, minus infinity ahead of it."""
    block: int
    """Keys per block; W is a multiple of it."""
    groups: tuple[_Group, ...]
    last: Indices
    """Tokens whose logits are wanted."""


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
        self.load(folder)
        self.clear()

    @property
    def vocab_size(self) -> int:
        return self.shape.vocab_size

    def load(self, folder: str | Path) -> None:
        """Replace the weights by those of `folder`. What the slots hold is not recomputed. Raises `ConfigError` if the
        network there has another shape."""
        shape = Qwen3Shape.read(Path(folder))
        if shape != self.shape:
            raise ConfigError(f"weights of another shape in {str(folder)!r}: {shape!r}, not {self.shape!r}")
        try:
            weights = _weights(_read_tensors(Path(folder)), shape)
        except (KeyError, SafetensorError) as error:
            raise ConfigError(f"weights in {str(folder)!r} cannot be read: {error}") from error
        self._weights = weights
        self._is_bounded = all(_largest_score(layer, shape) <= MAX_BOUNDED_SCORE for layer in weights.layers)

    def clear(self) -> None:
        """Drop all keys and values."""
        shape = self.shape
        width = -(-self.context_length // BLOCK) * BLOCK
        # (layer, slot, kv head: keys then values, position, head dim)
        self._cache = np.zeros(
            (shape.num_layers, self.num_slots, 2 * shape.num_kv_heads, width, shape.head_dim), np.float32
        )

    def copy(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` positions of slot `source` to slot `target`."""
        self._cache[:, target, :, :length] = self._cache[:, source, :, :length]

    def forward(self, rows: Rows, chunks: Sequence[Chunk]) -> Floats:
        """Compute R single tokens and C chunks; see `SlotModel.forward`."""
        plan = self._planned(rows, chunks)
        x = self._weights.embedding[plan.ids]
        for index, layer in enumerate(self._weights.layers):
            x += self._attention(x, index, plan)
            x += self._mlp(x, layer)
        return self._multiply(_unit(x[plan.last], self.shape.eps), self._weights.head)

    def _planned(self, rows: Rows, chunks: Sequence[Chunk]) -> _Plan:
        positions = np.concatenate((rows.positions, *(np.arange(c.start, c.start + len(c.ids)) for c in chunks)))
        slots = np.concatenate((rows.slots, *(np.full(len(c.ids), c.slot) for c in chunks)))
        num_heads, width = self._cache.shape[2:4]
        first = slots * (num_heads * width) + positions
        num_keys = int(positions.max()) + 1
        block = self._block or num_keys
        columns = np.arange(-(-num_keys // block) * block)
        ends = np.cumsum([len(rows.ids), *(len(c.ids) for c in chunks)])
        return _Plan(
            ids=np.concatenate((rows.ids, *(c.ids for c in chunks))),
            rotation=self._rotations[positions][:, None],
            written=(first[:, None] + np.arange(num_heads) * width).reshape(-1),
            bias=np.where(columns <= positions[:, None], np.float32(0), np.float32(-np.inf))[:, None, None],
            block=block,
            groups=(*_runs(rows.slots), *_spans(ends, chunks)),
            last=np.concatenate((np.arange(len(rows.ids)), ends[1:] - 1)),
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

    def _mlp(self, x: Floats, layer: _Layer) -> Floats:
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


def _weights(tensors: Mapping[str, Floats], shape: Qwen3Shape) -> _Weights:
    embedding = tensors["model.embed_tokens.weight"]
    return _Weights(
        embedding,
        tuple(_layer(tensors, shape, f"model.layers.{index}.") for index in range(shape.num_layers)),
        _input_first(tensors[shape.head], norm=tensors["model.norm.weight"]),
    )


def _layer(tensors: Mapping[str, Floats], shape: Qwen3Shape, name: str) -> _Layer:
    def weight(part: str) -> Floats:
        return tensors[f"{name}{part}.weight"]

    size = shape.head_dim
    pairs = np.arange(size).reshape(2, -1).T.reshape(-1)  # 0, hd / 2, 1, hd / 2 + 1, …

    def paired(part: str) -> Floats:
        matrix = weight(part)
        return matrix.reshape(-1, size, matrix.shape[1])[:, pairs].reshape(matrix.shape)

    query = np.tile(weight("self_attn.q_norm")[pairs], (shape.num_heads, 1))  # sqrt(hd) of the norm / sqrt(hd) of scale
    key = np.tile(weight("self_attn.k_norm")[pairs], (shape.num_kv_heads, 1)) * np.sqrt(np.float32(size))
    qkv = np.concatenate((paired("self_attn.q_proj"), paired("self_attn.k_proj"), weight("self_attn.v_proj")))
    gate_up = np.concatenate((weight("mlp.gate_proj") * np.float32(0.5), weight("mlp.up_proj")))
    return _Layer(
        qkv=_input_first(qkv, norm=weight("input_layernorm")),
        qk_norm=np.concatenate((query, key)),
        out=_input_first(weight("self_attn.o_proj")),
        gate_up=_input_first(gate_up, norm=weight("post_attention_layernorm")),
        down=_input_first(weight("mlp.down_proj")),
    )


def _largest_score(layer: _Layer, shape: Qwen3Shape) -> float:
    """Upper bound of a layer's attention scores: queries and keys have length 1 before their norms' weights."""
    sizes = np.abs(layer.qk_norm)
    return float(sizes[: shape.num_heads].max() * sizes[shape.num_heads :].max())


def _input_first(matrix: Floats, *, norm: Floats | None = None) -> Floats:
    """(out, in) -> contiguous (in, out), with the weight and the sqrt(size) of the RMS norm before it folded in."""
    if norm is not None:
        matrix = matrix * (norm * np.sqrt(np.float32(len(norm))))
    return np.ascontiguousarray(matrix.T)


def _read_tensors(folder: Path) -> dict[str, Floats]:
    """All tensors of the folder's safetensors files as float32."""
    tensors = {
        name: _float32(name, content)
        for path in sorted(folder.glob("*.safetensors"))
        for name, content in deserialize(path.read_bytes())
    }
    if not tensors:
        raise ConfigError(f"no *.safetensors file in {str(folder)!r}")
    return tensors


def _float32(name: str, content: Mapping[str, Any]) -> Floats:
    data, dtype = content["data"], content["dtype"]
    if dtype == "BF16":  # the upper half of a float32; numpy has no such type
        values = (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32)
    elif dtype in ("F16", "F32"):
        values = np.frombuffer(data, "<f2" if dtype == "F16" else "<f4").astype(np.float32)
    else:
        raise ConfigError(f"tensor {name!r} has dtype {dtype!r}; allowed: BF16, F16, F32")
    return values.reshape(content["shape"])
