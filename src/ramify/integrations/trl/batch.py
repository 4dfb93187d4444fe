# pyright: reportMissingImports=false
# torch is not in the development environment.
"""Batch: samples of trees as the tensors that TRL's loss reads, with an advantage for every token.

TRL divides the loss of B rows by B. Trees differ in leaves, so B differs from batch to batch; advantages are multiplied
by B / (trees * normaliser) here, and the loss is the mean over trees of the loss in docs/concepts/rows.md.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from ramify.core.errors import ExportError
from ramify.rows.sample import Sample
from ramify.rows.slime import ADVANTAGES, POSITIVE


def tensors(samples: Sequence[Sample], *, num_trees: int, multiple_of: int, pad_id: int) -> dict[str, Any]:
    """B rows of P prompt and C completion tokens; B is a multiple of `multiple_of`, rows that fill it up train nothing.

    `prompt_ids`, `prompt_mask` (B, P), padded on the left. `completion_ids`, `completion_mask`, `tool_mask` (1 =
    trained), `advantages`, `positive`, `sampling_per_token_logps` (B, C), padded on the right. `positive` are the parts
    of the advantages that leaves with positive ones give; left out where no token has both parts. The last is left out
    where a row has no logprobs. `num_trees`: trees that the batch should have, whether it has them or not. `pad_id`:
    fills rows to one length. Raises `ExportError` for a sample without credit.
    """
    size = -(-len(samples) // multiple_of) * multiple_of
    width = max(len(sample.tokens) - sample.response_length for sample in samples)
    length = max(sample.response_length for sample in samples)
    prompts, completions = np.full((size, width), pad_id), np.full((size, length), pad_id)
    prompt_mask, completion_mask = np.zeros_like(prompts), np.zeros_like(completions)
    trained = np.zeros_like(completions)
    advantages, positive, logprobs = (np.zeros((size, length), np.float32) for _ in range(3))
    prompt_mask[len(samples) :, -1] = 1  # no softmax over an empty row
    for number, sample in enumerate(samples):
        num_prompt, num = len(sample.tokens) - sample.response_length, sample.response_length
        prompts[number, width - num_prompt :] = sample.tokens[:num_prompt]
        prompt_mask[number, width - num_prompt :] = 1
        completions[number, :num] = sample.tokens[num_prompt:]
        completion_mask[number, :num] = 1
        trained[number, :num] = sample.mask()
        scale = size / (num_trees * _normaliser(sample))
        advantages[number, :num] = np.array(_credit(sample)) * scale
        positive[number, :num] = np.array(_positive(sample)) * scale
        logprobs[number, :num] = sample.rollout_log_probs or 0.0
    made = {
        "prompt_ids": prompts,
        "prompt_mask": prompt_mask,
        "completion_ids": completions,
        "completion_mask": completion_mask,
        "tool_mask": trained,
        "advantages": advantages,
    }
    if any(POSITIVE in (sample.train_metadata or {}) for sample in samples):
        made["positive"] = positive
    if all(sample.rollout_log_probs is not None for sample in samples):
        made["sampling_per_token_logps"] = logprobs
    return {name: torch.from_numpy(array) for name, array in made.items()}


def versions(sample: Sample) -> list[int]:
    """Versions of the policy that sampled a row."""
    return [int(version) for version in sample.weight_versions]


def _credit(sample: Sample) -> Sequence[float]:
    """(R,) weight * advantage of each token."""
    found = (sample.train_metadata or {}).get(ADVANTAGES)
    if found is None:
        raise ExportError(
            f"sample {sample.index} has no advantages a token; a service.rollout_function of your own must set "
            f"train_metadata[{ADVANTAGES!r}], or leave it out"
        )
    return found


def _positive(sample: Sample) -> Sequence[float]:
    """(R,) what of each advantage is above 0: leaves with positive advantages give it."""
    found = (sample.train_metadata or {}).get(POSITIVE)
    return np.maximum(_credit(sample), 0.0).tolist() if found is None else found


def _normaliser(sample: Sample) -> float:
    """Of the run; 1 for samples of a user's function, which divides by what it likes."""
    said = sample.metadata.get("ramify")
    return float(said["normaliser"]) if said else 1.0
