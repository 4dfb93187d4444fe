"""slime 624b824: its policy loss and its sums over rollouts, on our file of training data."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.originals.sources import imports, source
from tests.trainers.factor import BATCHES, INEXACT, Factor, Matrix, differentiated, factor, rows_of, stated, uncompiled

from ramify.rows import Row
from ramify.rows.slime import write_train_data

pytestmark = [
    pytest.mark.trainers,
    pytest.mark.filterwarnings("ignore"),  # of other people's libraries
]
torch = pytest.importorskip("torch", reason="torch is not installed: make test-trainers")


@pytest.fixture(scope="module")
def slime() -> Any:
    """(its PPO loss, its reduction)."""
    root = source("RAMIFY_SLIME", "THUDM/slime", "slime/backends/megatron_utils/cp_utils.py")
    packages = ("slime", "slime.utils", "slime.backends", "slime.backends.megatron_utils")
    with uncompiled(), imports(root, absent=(*packages, "megatron", "megatron.core")) as load:
        losses = load("slime.utils.ppo_utils")
        sums = load("slime.backends.megatron_utils.cp_utils")
    sums.mpu = OneRank()
    return losses.compute_policy_loss, sums.get_sum_of_sample_mean


class OneRank:
    """Of Megatron's parallel state."""

    def get_context_parallel_world_size(self) -> int:
        return 1


def read(rows: Sequence[Row], folder: Path, mean: str) -> list[dict[str, Any]]:
    write_train_data(rows, folder / "train.jsonl", mean=mean, force=True)  # type: ignore[arg-type]
    return [json.loads(line) for line in (folder / "train.jsonl").read_text("utf-8").splitlines()]


def of(slime: Any, rows: Sequence[Row], folder: Path, *, mean: str = "tokens", num_micro: int = 1) -> Factor:
    policy_loss, reduction = slime
    found: list[Matrix] = []
    data = read(rows, folder, mean)
    for places in np.array_split(np.arange(len(data)), num_micro):
        part = [data[place] for place in places]
        lengths = [line["response_lengths"] for line in part]
        masks = [torch.tensor(line["loss_masks"]) for line in part]
        advantages = torch.cat([torch.tensor(line["rewards"]) for line in part])
        summed = reduction(
            [len(line["tokens"]) for line in part],
            lengths,
            masks,
            [torch.tensor(line["rollout_mask_sums"]) for line in part],
        )
        old = torch.full(advantages.shape, -1.0)

        def loss(logprobs: Any, old: Any = old, advantages: Any = advantages, summed: Any = summed) -> Any:
            return summed(policy_loss(old - logprobs, advantages, 0.2, 0.2)[0])

        found += np.split(differentiated(loss, old), np.cumsum(lengths)[:-1])
    return factor(_padded(found, rows), stated(rows))


def _padded(gradients: Sequence[Any], rows: Sequence[Row]) -> Matrix:
    """(B, R): a response begins at the first sampled token in slime, which may be behind the prompt."""
    whole = np.zeros_like(stated(rows))
    for number, (row, gradient) in enumerate(zip(rows, gradients, strict=True)):
        end = len(row) - row.num_prompt
        whole[number, end - len(gradient) : end] = gradient
    return whole


@pytest.mark.parametrize("name", BATCHES)
@pytest.mark.parametrize("num_micro", [1, 3])
def test_one_sum_for_all_rollouts_is_exact(name: str, num_micro: int, slime: Any, tmp_path: Path) -> None:
    found = of(slime, rows_of(name), tmp_path, num_micro=num_micro)
    assert found.is_exact, found


@pytest.mark.parametrize("name", BATCHES)
def test_a_mean_over_each_rollout_is_not(name: str, slime: Any, tmp_path: Path) -> None:
    assert of(slime, rows_of(name), tmp_path, mean="rollouts").spread > INEXACT
