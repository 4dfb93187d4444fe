"""Models for the tests of in-process engines: random weights in the shipped format, and one that needs no weights."""

import asyncio
import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ramify.engines.batching_stats import Stats
from ramify.engines.slot_model import Chunk, Rows

TOKENIZER = Path(__file__).parents[2] / "src" / "ramify" / "data" / "builtin"

TINY: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": 550,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 48,
    "hidden_act": "silu",
    "attention_bias": False,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    "max_position_embeddings": 256,
    "tie_word_embeddings": True,
    "eos_token_id": 266,
    "torch_dtype": "bfloat16",
}


def write_model(folder: Path, *, seed: int = 0, norm_scale: float = 1.0, **changes: Any) -> Path:
    """Write a random model with the shipped tokenizer; `norm_scale` multiplies the norms of queries and keys."""
    config = {**TINY, **changes}
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(TOKENIZER / name, folder / name)
    (folder / "config.json").write_text(json.dumps(config))
    rng = np.random.default_rng(seed)
    tensors = {
        name: _initial(rng, shape, norm_scale if name.endswith(("q_norm.weight", "k_norm.weight")) else 1.0)
        for name, shape in tensor_shapes(config).items()
    }
    write_tensors(folder / "model.safetensors", tensors)
    return folder


def tensor_shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    width, size, inner = config["hidden_size"], config["head_dim"], config["intermediate_size"]
    queries, keys = config["num_attention_heads"] * size, config["num_key_value_heads"] * size
    layer: dict[str, tuple[int, ...]] = {
        "input_layernorm": (width,),
        "post_attention_layernorm": (width,),
        "self_attn.q_proj": (queries, width),
        "self_attn.k_proj": (keys, width),
        "self_attn.v_proj": (keys, width),
        "self_attn.o_proj": (width, queries),
        "self_attn.q_norm": (size,),
        "self_attn.k_norm": (size,),
        "mlp.gate_proj": (inner, width),
        "mlp.up_proj": (inner, width),
        "mlp.down_proj": (width, inner),
    }
    shapes = {
        f"model.layers.{index}.{name}.weight": shape
        for index in range(config["num_hidden_layers"])
        for name, shape in layer.items()
    }
    head = {} if config["tie_word_embeddings"] else {"lm_head.weight": (config["vocab_size"], width)}
    return {"model.embed_tokens.weight": (config["vocab_size"], width), "model.norm.weight": (width,), **shapes, **head}


def write_tensors(path: Path, tensors: Mapping[str, npt.NDArray[Any]]) -> None:
    """Write a safetensors file; uint16 arrays are bf16 bit patterns, others keep their type."""
    names = {"uint16": "BF16", "float16": "F16", "float32": "F32", "float64": "F64"}
    header: dict[str, Any] = {}
    end = 0
    for name, values in tensors.items():
        start, end = end, end + values.nbytes
        header[name] = {"dtype": names[values.dtype.name], "shape": values.shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(v.tobytes() for v in tensors.values()))


def _initial(rng: np.random.Generator, shape: tuple[int, ...], scale: float) -> npt.NDArray[np.uint16]:
    """bf16 bit patterns: norms around 1, matrices of a size that keeps activations near 1."""
    values = rng.normal(1, 0.2, shape) * scale if len(shape) == 1 else rng.normal(0, 1.5 * shape[1] ** -0.5, shape)
    return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


class HashModel:
    """A `SlotModel` whose logits are a hash of what its own cache holds, so that a wrong prefix changes them.

    It refuses what no real model may be asked for: a gap in a slot, a slot named twice, a copy of what is not there.
    `script`, where given, is the text it continues any context with, by absolute position.
    """

    def __init__(
        self, *, num_slots: int = 8, context_length: int = 256, vocab_size: int = 257, script: Sequence[int] = ()
    ) -> None:
        self.num_slots, self.context_length, self.vocab_size = num_slots, context_length, vocab_size
        self.script = script
        self.calls: list[tuple[int, list[int]]] = []
        """Rows and sizes of the chunks of every forward."""
        self.poison = -1
        """A token id that the model fails on."""
        self._held = [np.empty(0, np.int32)] * num_slots

    def forward(self, rows: Rows, chunks: Sequence[Chunk]) -> npt.NDArray[np.float32]:
        given = [*zip(rows.slots.tolist(), rows.positions.tolist(), rows.ids[:, None], strict=True)]
        given += [(chunk.slot, chunk.start, chunk.ids) for chunk in chunks]
        assert len({slot for slot, _, _ in given}) == len(given) > 0
        self.calls.append((len(rows.ids), [len(chunk.ids) for chunk in chunks]))
        if any(self.poison in ids for _, _, ids in given):
            raise RuntimeError("poison")
        return np.stack([self._logits(slot, start, ids) for slot, start, ids in given])

    def copy(self, source: int, target: int, length: int) -> None:
        assert 0 < length <= len(self._held[source])
        self._held[target] = self._held[source][:length].copy()

    def _logits(self, slot: int, start: int, ids: npt.NDArray[np.int32]) -> npt.NDArray[np.float32]:
        assert start <= len(self._held[slot])
        self._held[slot] = np.concatenate((self._held[slot][:start], ids))
        return self.law(self._held[slot])

    def law(self, ids: npt.NDArray[np.int32]) -> npt.NDArray[np.float32]:
        """(V,) logits after `ids`."""
        if self.script:
            following = self.script[min(len(ids), len(self.script) - 1)]
            return np.where(np.arange(self.vocab_size) == following, 30.0, 0.0).astype(np.float32)
        seed = int.from_bytes(hashlib.blake2b(ids.tobytes(), digest_size=8).digest(), "little")
        return np.random.default_rng(seed).normal(0, 2, self.vocab_size).astype(np.float32)


async def until_decoded(stats: Stats, num: int) -> None:
    """Give way until `num` tokens were sampled."""
    for _ in range(10_000):
        if stats.num_decoded >= num:
            return
        await asyncio.sleep(0)
    raise AssertionError(f"{stats.num_decoded} of {num} tokens after 10,000 turns")
