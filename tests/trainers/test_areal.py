"""AReaL 4aef98d: the PPO loss of its actor, on one micro batch with advantages given.

Its own advantages come from one reward a row, so credit of ours has no entry there; what is shown is its loss alone.
"""

from typing import Any

import pytest
from tests.originals.sources import imports, source
from tests.trainers.factor import BATCHES, differentiated, factor, rows_of, stated, uncompiled

from ramify.rows import padded

pytestmark = [
    pytest.mark.trainers,
    pytest.mark.filterwarnings("ignore"),  # of other people's libraries
]
torch = pytest.importorskip("torch", reason="torch is not installed: make test-trainers")


@pytest.fixture(scope="module")
def functional() -> Any:
    root = source("RAMIFY_AREAL", "inclusionAI/AReaL", "areal/utils/functional/functional.py")
    packages = ("areal", "areal.utils", "areal.utils.functional", "areal.api")
    with uncompiled(), imports(root, absent=(*packages, "areal.api.cli_args", "areal.utils.data")) as load:
        return load("areal.utils.functional.functional")


@pytest.mark.parametrize("name", BATCHES)
def test_one_micro_batch_is_exact(name: str, functional: Any) -> None:
    rows, arrays = rows_of(name), padded(rows_of(name))
    mask = torch.from_numpy(arrays.loss_weights > 0)
    advantages = torch.from_numpy(arrays.loss_weights * arrays.advantages)
    old = torch.full(mask.shape, -1.0)

    def loss(logprobs: Any) -> Any:
        return functional.ppo_actor_loss_fn(logprobs, old, old, advantages, 0.2, mask)[0]

    found = factor(differentiated(loss, old), stated(rows))
    assert found.is_exact, found
