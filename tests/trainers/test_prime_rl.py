"""prime-rl 559b447: its `compute_loss` with its default loss, at the policy that sampled."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.originals.sources import imports, source
from tests.trainers.factor import BATCHES, INEXACT, Factor, Matrix, differentiated, factor, rows_of, stated, uncompiled

from ramify.rows import Row

pytestmark = [
    pytest.mark.trainers,
    pytest.mark.filterwarnings("ignore"),  # of other people's libraries
]
torch = pytest.importorskip("torch", reason="torch is not installed: make test-trainers")
pytest.importorskip("jaxtyping", reason="jaxtyping is not installed: make test-trainers")
pytest.importorskip("beartype", reason="beartype is not installed: make test-trainers")
CONFIG = SimpleNamespace(dppo_mask_high=0.2, dppo_mask_low=0.2, adv_tau=1.0, kl_tau=0.0)


@pytest.fixture(scope="module")
def losses() -> Any:
    root = source("RAMIFY_PRIME_RL", "PrimeIntellect-ai/prime-rl", "src/prime_rl/trainer/rl/loss.py")
    packages = ("prime_rl", "prime_rl.trainer", "prime_rl.trainer.rl", "prime_rl.configs", "prime_rl.utils")
    absent = (*packages, "prime_rl.configs.trainer", "prime_rl.utils.utils")
    with uncompiled(), imports(root / "src", absent=absent) as load:
        return load("prime_rl.trainer.rl.loss")


def of(losses: Any, rows: Sequence[Row], *, num_micro: int = 1, scales: Sequence[int] | None = None) -> Factor:
    """`scales`: what each micro batch is divided by; None = all trained tokens, as prime-rl counts them."""
    masks = [torch.from_numpy(row.weights > 0) for row in rows]
    total = int(sum(mask.sum() for mask in masks))
    gradients: list[Matrix] = []
    for number, places in enumerate(np.array_split(np.arange(len(rows)), num_micro)):
        part = [rows[place] for place in places]
        lengths = [len(row) for row in part]

        def loss(logprobs: Any, places: Any = places, lengths: Any = lengths, number: int = number) -> Any:
            sequences = list(logprobs.split(lengths))
            return losses.compute_loss(
                trainer_logprobs=sequences,
                inference_logprobs=[each.detach() for each in sequences],
                ref_logprobs=None,
                advantages=[torch.from_numpy(rows[place].trained) for place in places],
                loss_mask=[masks[place] for place in places],
                rl_weights=None,
                ce_weights=None,
                ref_kl_weights=None,
                rl_loss_fn=lambda inputs: losses.default_loss_fn(inputs, CONFIG),
                rl_scale=total if scales is None else scales[number],
                ce_scale=1,
                ref_kl_scale=1,
            )[0]

        gradient = differentiated(loss, torch.full((sum(lengths),), -1.0))
        gradients += np.split(gradient, np.cumsum(lengths)[:-1])
    whole = np.zeros_like(stated(rows))
    for number, (row, gradient) in enumerate(zip(rows, gradients, strict=True)):
        whole[number, : len(row) - row.num_prompt] = gradient[row.num_prompt :]
    return factor(whole, stated(rows))


@pytest.mark.parametrize("name", BATCHES)
@pytest.mark.parametrize("num_micro", [1, 3])
def test_the_sum_over_all_trained_tokens_is_exact(name: str, num_micro: int, losses: Any) -> None:
    found = of(losses, rows_of(name), num_micro=num_micro)
    assert found.is_exact, found


def test_a_divisor_of_each_micro_batch_is_not(losses: Any) -> None:
    """What `filter_zero_advantages` makes of a batch: the tokens it drops are missing in the divisor."""
    rows = rows_of("mixed")
    counts = [
        int(sum((rows[place].trained != 0).sum() for place in places))
        for places in np.array_split(np.arange(len(rows)), 2)
    ]
    assert of(losses, rows, num_micro=2, scales=counts).spread > INEXACT
