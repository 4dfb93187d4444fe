"""Hugging Face folders with random weights, one a family of models, with the shipped tokenizer. Needs torch."""

import shutil
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from ramify.engines.builtin import FOLDER

SIZES: dict[str, Any] = {
    "vocab_size": 600,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.3,
    "bos_token_id": None,
    "eos_token_id": 266,
    "pad_token_id": 270,
}
"""More ids than the tokenizer has, and weights large enough that positions and neighbours matter."""

OTHER_SIZES: dict[str, dict[str, Any]] = {
    "gpt2": {"num_key_value_heads": None, "intermediate_size": None},
    "qwen3": {"head_dim": 8},
    "gemma2": {"head_dim": 8, "sliding_window": 64},
    "mamba": {"max_position_embeddings": None},
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "recurrent_gemma": {"lru_width": 32},
    "rwkv": {"num_attention_heads": None, "num_key_value_heads": None, "attention_hidden_size": 32},
}


def config_of(family: str, **changes: Any) -> Any:
    settings = {**SIZES, **OTHER_SIZES.get(family, {}), **changes}
    return CONFIG_MAPPING[family](**{k: v for k, v in settings.items() if v is not None or k == "bos_token_id"})


def write_folder(folder: Path, family: str, *, seed: int = 0, **changes: Any) -> Path:
    """Write a random model of a family and the shipped tokenizer into `folder`."""
    torch.manual_seed(seed)
    AutoModelForCausalLM.from_config(config_of(family, **changes)).save_pretrained(folder)
    return with_tokenizer(folder)


def with_tokenizer(folder: Path) -> Path:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(FOLDER / name, folder / name)
    return folder


def network_of(folder: Path) -> Any:
    """The folder's model as transformers loads it."""
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


@torch.inference_mode()
def logprobs_of(network: Any, ids: list[int], start: int) -> list[float]:
    """Logprobs of the tokens from `start` on, by one forward pass without a cache."""
    logits = network(input_ids=torch.tensor([ids]), use_cache=False).logits[0, start - 1 : -1]
    return logits.log_softmax(-1)[range(len(ids) - start), ids[start:]].tolist()


@torch.inference_mode()
def greedy_of(network: Any, ids: list[int], num: int) -> list[int]:
    """What `generate` continues `ids` by."""
    whole = network.generate(
        torch.tensor([ids]), attention_mask=torch.ones(1, len(ids)), do_sample=False, max_new_tokens=num
    )
    return whole[0, len(ids) :].tolist()
