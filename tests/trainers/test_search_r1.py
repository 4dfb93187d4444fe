"""Search-R1 a14dc3a: its policy loss, a mean over the tokens of each micro batch."""

from typing import Any

import numpy as np
import pytest
from tests.originals.sources import imports, source
from tests.trainers.factor import BATCHES, INEXACT, Factor, differentiated, factor, rows_of, stated

from ramify.rows import padded, search_r1

pytestmark = [
    pytest.mark.trainers,
    pytest.mark.filterwarnings("ignore"),  # of other people's libraries
]
torch = pytest.importorskip("torch", reason="torch is not installed: make test-trainers")


@pytest.fixture(scope="module")
def core_algos() -> Any:
    root = source("RAMIFY_SEARCH_R1", "PeterGriffinJin/Search-R1", "verl/trainer/ppo/core_algos.py")
    packages = ("verl", "verl.trainer", "verl.trainer.ppo", "verl.utils")
    with imports(root, absent=(*packages, "tensordict", "flash_attn")) as load:
        return load("verl.trainer.ppo.core_algos")


def of(core_algos: Any, name: str, num_micro: int = 1) -> Factor:
    """Its export, with advantages of ours in the place of its own estimator's."""
    rows, arrays = rows_of(name), padded(rows_of(name))
    tensors = search_r1.batch(rows).tensors
    info_mask = tensors["info_mask"][:, -tensors["responses"].shape[1] :]
    found = []
    for places in np.array_split(np.arange(len(rows)), num_micro):
        mask = torch.from_numpy(info_mask[places].astype("float32"))
        advantages = torch.from_numpy((arrays.loss_weights * arrays.advantages)[places])
        old = torch.full(mask.shape, -1.0)

        def loss(logprobs: Any, old: Any = old, advantages: Any = advantages, mask: Any = mask) -> Any:
            return core_algos.compute_policy_loss(old, logprobs, advantages, mask, 0.2)[0] / num_micro

        found.append(differentiated(loss, old))
    return factor(np.concatenate(found), stated(rows))


@pytest.mark.parametrize("name", BATCHES)
def test_one_micro_batch_is_exact(name: str, core_algos: Any) -> None:
    found = of(core_algos, name)
    assert found.is_exact, found


def test_two_micro_batches_are_not(core_algos: Any) -> None:
    assert of(core_algos, "mixed", num_micro=2).spread > INEXACT
