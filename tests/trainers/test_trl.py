"""TRL 1.16: the own loss of its GRPOTrainer, on a model of a few hundred parameters."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.trainers.factor import BATCHES, INEXACT, Factor, Matrix, differentiated, drift, factor, rows_of, stated

from ramify.rows import Row, padded

pytestmark = [
    pytest.mark.trainers,
    pytest.mark.filterwarnings("ignore"),  # of other people's libraries
]
trl = pytest.importorskip("trl", reason="trl is not installed: make test-trainers")

EXACT = ("dr_grpo", "luspo", "bnpo", "dapo")
MICRO = ("dr_grpo", "dapo")
"""Exact also where a batch is split into micro batches, which differ in tokens."""


def tokenizer() -> Any:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    model = models.WordLevel({"<pad>": 0, "<eos>": 1, "a": 2}, unk_token="a")
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(model), pad_token="<pad>", eos_token="<eos>")


def trainer(folder: Path, loss_type: str, num_micro: int) -> Any:
    """TRL's own trainer, with its log-probabilities given from outside."""
    from datasets import Dataset
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(vocab_size=256, n_positions=512, n_embd=8, n_layer=1, n_head=1))
    args = trl.GRPOConfig(
        output_dir=str(folder), use_cpu=True, bf16=False, report_to="none", loss_type=loss_type, beta=0.0,
        per_device_train_batch_size=2, num_generations=2, steps_per_generation=num_micro,
        gradient_accumulation_steps=num_micro, max_completion_length=64,
    )  # fmt: skip
    made = trl.GRPOTrainer(
        model=model,
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=args,
        train_dataset=Dataset.from_list([{"prompt": "a"}] * 4),
        processing_class=tokenizer(),
    )
    made.current_gradient_accumulation_steps = num_micro
    model.train()
    return made


def inputs_of(rows: Sequence[Row], advantages: Any = None) -> dict[str, Any]:
    """A batch as `_generate_and_score_completions` gives it, with one advantage a token."""
    import torch

    arrays = padded(rows)
    mask = torch.from_numpy(arrays.attention_mask)
    num_prompt = arrays.prompts.shape[1]
    is_trained = torch.from_numpy((arrays.loss_weights > 0).astype(np.int64))
    by_token = torch.from_numpy(arrays.loss_weights * arrays.advantages)
    return {
        "prompt_ids": torch.from_numpy(arrays.prompts.copy()),
        "prompt_mask": mask[:, :num_prompt],
        "completion_ids": torch.from_numpy(arrays.responses.copy()),
        "completion_mask": mask[:, num_prompt:],
        "tool_mask": is_trained,
        "advantages": by_token if advantages is None else advantages,
        "num_items_in_batch": is_trained.sum(),
    }


def parts(inputs: dict[str, Any], num_micro: int) -> Iterator[dict[str, Any]]:
    """Micro batches of nearly the same number of rows."""
    num_rows = len(inputs["prompt_ids"])
    for places in np.array_split(np.arange(num_rows), num_micro):
        yield {name: value if value.dim() == 0 else value[places] for name, value in inputs.items()}


def gradient(made: Any, inputs: dict[str, Any], num_micro: int = 1) -> Matrix:
    """`inputs` may hold how far the log-probabilities have moved since the tokens were sampled, as `moved`."""
    import torch

    found = []
    for part in parts(inputs, num_micro):
        old = torch.full(part["completion_ids"].shape, -1.0)

        def loss(logprobs: Any, part: dict[str, Any] = part) -> Any:
            made._get_per_token_logps_and_entropies = lambda *_, **__: (logprobs, torch.zeros_like(logprobs), None)
            return made._compute_loss(made.model, part)

        if "moved" in part:
            part["old_per_token_logps"] = old
        found.append(differentiated(loss, old + part["moved"] if "moved" in part else old))
    return np.concatenate(found)


def of(folder: Path, rows: Sequence[Row], loss_type: str, num_micro: int = 1) -> Factor:
    rows = rows[: len(rows) // num_micro * num_micro]
    return factor(gradient(trainer(folder, loss_type, num_micro), inputs_of(rows), num_micro), stated(rows))


@pytest.mark.parametrize("name", BATCHES)
@pytest.mark.parametrize("loss_type", EXACT)
def test_losses_that_are_exact(name: str, loss_type: str, tmp_path: Path) -> None:
    found = of(tmp_path, rows_of(name), loss_type)
    assert found.is_exact, found


@pytest.mark.parametrize("name", BATCHES)
@pytest.mark.parametrize("loss_type", MICRO)
def test_losses_that_are_exact_over_micro_batches(name: str, loss_type: str, tmp_path: Path) -> None:
    found = of(tmp_path, rows_of(name), loss_type, num_micro=2)
    assert found.is_exact, found


def test_tokens_of_an_older_policy_count_by_their_ratio(tmp_path: Path) -> None:
    import torch

    rows = rows_of("mixed")
    moved = drift(stated(rows))
    inputs = {**inputs_of(rows), "moved": torch.tensor(moved)}
    found = factor(gradient(trainer(tmp_path, "dr_grpo", 1), inputs), stated(rows) * np.exp(moved))
    assert found.is_exact, found


@pytest.mark.parametrize("name", BATCHES)
def test_the_mean_over_each_sequence_is_not(name: str, tmp_path: Path) -> None:
    assert of(tmp_path, rows_of(name), "grpo").spread > INEXACT


def test_the_mean_over_the_tokens_of_each_micro_batch_is_not(tmp_path: Path) -> None:
    assert of(tmp_path, rows_of("mixed"), "bnpo", num_micro=2).spread > 1 + 1e-3


def test_one_scalar_a_row_is_not(tmp_path: Path) -> None:
    """What TRL's `rollout_func` can hand over: a reward a row, compared in its group."""
    import torch

    rows = rows_of("uneven")
    means = {uid: np.mean([row.reward for row in rows if row.uid == uid]) for uid in {row.uid for row in rows}}
    scalars = torch.tensor([row.reward - means[row.uid] for row in rows], dtype=torch.float32)
    assert not factor(gradient(trainer(tmp_path, "dr_grpo", 1), inputs_of(rows, scalars)), stated(rows)).is_exact
