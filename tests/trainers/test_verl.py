"""verl 0.9.1: its DataProto, its vanilla PPO loss and its reductions."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from tests.trainers.factor import BATCHES, INEXACT, Factor, Matrix, differentiated, drift, factor, rows_of, stated

from ramify.rows import Row, verl

pytestmark = [
    pytest.mark.trainers,
    pytest.mark.filterwarnings("ignore"),  # of other people's libraries
]
core_algos = pytest.importorskip("verl.trainer.ppo.core_algos", reason="verl is not installed: make test-trainers")
DataProto: Any = pytest.importorskip("verl").DataProto


def loaded(rows: Sequence[Row]) -> Any:
    """Through verl's own constructor."""
    return DataProto.from_single_dict(verl.batch(rows).single_dict())


def gradient(batch: Any, advantages: Any, mode: str, num_micro: int = 1, moved: Matrix | float = 0.0) -> Matrix:
    """Of verl's loss over all micro batches, which add up as its actor adds them up."""
    import torch
    from verl.workers.config import ActorConfig

    found = []
    for micro in batch.split(-(-len(batch) // num_micro)) if num_micro > 1 else [batch]:
        mask = micro.batch["response_mask"]
        part = advantages[sum(map(len, found)) :][: len(micro)]
        config = ActorConfig(strategy="fsdp", rollout_n=1, ppo_micro_batch_size_per_gpu=1)
        config.global_batch_info.update(
            {"batch_num_tokens": batch.batch["response_mask"].sum(), "global_batch_size": len(batch)}
        )
        old = torch.full(mask.shape, -1.0)

        def loss(logprobs: Any, old: Any = old, part: Any = part, mask: Any = mask, config: Any = config) -> Any:
            return core_algos.compute_policy_loss_vanilla(old, logprobs, part, mask, mode, config)[0]

        moved_part = moved if isinstance(moved, float) else torch.tensor(moved[sum(map(len, found)) :][: len(micro)])
        found.append(differentiated(loss, old.double() + moved_part))
    return np.concatenate(found)


def own(batch: Any) -> Any:
    """What the estimator of our recipe returns."""
    return batch.batch["rm_scores"] * batch.batch["response_mask"]


def of(rows: Sequence[Row], mode: str, num_micro: int = 1) -> Factor:
    batch = loaded(rows)
    return factor(gradient(batch, own(batch), mode, num_micro), stated(rows))


def test_its_loader_takes_our_batch() -> None:
    rows = rows_of("mixed")
    batch = loaded(rows)
    assert len(batch) == len(rows)
    assert set(batch.batch.keys()) >= {"responses", "response_mask", "rm_scores", "versions", "attention_mask"}
    assert batch.non_tensor_batch["uid"].tolist() == [row.uid for row in rows]


@pytest.mark.parametrize("name", BATCHES)
@pytest.mark.parametrize("mode", ["token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-sum-norm"])
@pytest.mark.parametrize("num_micro", [1, 3])
def test_reductions_that_are_exact(name: str, mode: str, num_micro: int) -> None:
    found = of(rows_of(name), mode, num_micro)
    assert found.is_exact, found


@pytest.mark.parametrize("num_micro", [1, 3])
def test_tokens_of_an_older_policy_count_by_their_ratio(num_micro: int) -> None:
    rows = rows_of("mixed")
    batch, moved = loaded(rows), drift(stated(rows))
    found = factor(gradient(batch, own(batch), "seq-mean-token-sum", num_micro, moved), stated(rows) * np.exp(moved))
    assert found.is_exact, found


@pytest.mark.parametrize("name", BATCHES)
def test_a_mean_over_each_sequence_is_not_exact(name: str) -> None:
    assert of(rows_of(name), "seq-mean-token-mean").spread > INEXACT


def test_its_own_estimator_trains_something_else() -> None:
    """`grpo`, if it is left on: the sums of our advantages, compared in groups."""
    batch = loaded(rows_of("uneven"))
    by_grpo, _ = core_algos.compute_grpo_outcome_advantage(
        batch.batch["rm_scores"].clone(), batch.batch["response_mask"], batch.non_tensor_batch["uid"]
    )
    found = factor(gradient(batch, by_grpo, "seq-mean-token-sum"), stated(rows_of("uneven")))
    assert not found.is_exact
