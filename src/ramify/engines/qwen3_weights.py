"""Weights of a Qwen3 network, as read from a folder in Hugging Face format, ready to multiply by.

Each norm's weights are folded into the matrix after it, and so are the scale of attention and the half of the gate.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, deserialize

from ramify.core.errors import ConfigError

Floats = npt.NDArray[np.float32]

CLASSIFIER = "Qwen3ForSequenceClassification"
"""The architecture whose output is a score."""


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
        """Read `config.json`. Raises `ConfigError` for a network that `NumpyModel` does not compute."""
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
class LayerWeights:
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
class Weights:
    """All weights of a network."""

    embedding: Floats
    """(V, D)."""
    layers: tuple[LayerWeights, ...]
    head: Floats
    """(D, V), with the last norm folded in."""


def read_weights(folder: Path, shape: Qwen3Shape) -> Weights:
    """The weights of the folder's safetensors files. Raises `ConfigError` if they cannot be read."""
    try:
        return _weights(_read_tensors(folder), shape)
    except (KeyError, SafetensorError) as error:
        raise ConfigError(f"weights in {str(folder)!r} cannot be read: {error}") from error


def _weights(tensors: Mapping[str, Floats], shape: Qwen3Shape) -> Weights:
    embedding = tensors["model.embed_tokens.weight"]
    return Weights(
        embedding,
        tuple(_layer(tensors, shape, f"model.layers.{index}.") for index in range(shape.num_layers)),
        _input_first(tensors[shape.head], norm=tensors["model.norm.weight"]),
    )


def _layer(tensors: Mapping[str, Floats], shape: Qwen3Shape, name: str) -> LayerWeights:
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
    return LayerWeights(
        qkv=_input_first(qkv, norm=weight("input_layernorm")),
        qk_norm=np.concatenate((query, key)),
        out=_input_first(weight("self_attn.o_proj")),
        gate_up=_input_first(gate_up, norm=weight("post_attention_layernorm")),
        down=_input_first(weight("mlp.down_proj")),
    )


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
