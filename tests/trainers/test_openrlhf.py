"""OpenRLHF 0.11.2: its PolicyLoss. The package itself needs a GPU to be imported, so its module of losses is alone."""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from tests.originals.sources import imports
from tests.trainers.factor import BATCHES, INEXACT, Factor, differentiated, factor, rows_of, stated

from ramify.rows import Row, padded

pytestmark = [
    pytest.mark.trainers,
    pytest.mark.filterwarnings("ignore"),  # of other people's libraries
]


@pytest.fixture(scope="module")
def losses() -> Any:
    """`openrlhf.models.loss`, without what `openrlhf.models` and its `utils` import beside it."""
    spec = find_spec("openrlhf")
    if spec is None or spec.submodule_search_locations is None:
        pytest.skip("openrlhf is not installed: make test-trainers")
    (folder,) = spec.submodule_search_locations
    with imports(Path(folder).parent, absent=("openrlhf", "openrlhf.models", "deepspeed")) as load:
        return load("openrlhf.models.loss")


def of(losses: Any, rows: Sequence[Row], *, is_by_token: bool) -> Factor:
    import torch

    arrays = padded(rows)
    mask = torch.from_numpy((arrays.loss_weights > 0).astype("float32"))
    advantages = torch.from_numpy(arrays.loss_weights * arrays.advantages)
    old = torch.full(mask.shape, -1.0)
    policy_loss = losses.PolicyLoss(token_level_loss=is_by_token)

    def loss(logprobs: Any) -> Any:
        found = policy_loss(logprobs, old, advantages, action_mask=mask)
        return found[0] if isinstance(found, tuple) else found

    return factor(differentiated(loss, old), stated(rows))


@pytest.mark.parametrize("name", BATCHES)
def test_the_mean_over_tokens_is_exact(name: str, losses: Any) -> None:
    found = of(losses, rows_of(name), is_by_token=True)
    assert found.is_exact, found


@pytest.mark.parametrize("name", BATCHES)
def test_the_mean_over_each_sample_is_not(name: str, losses: Any) -> None:
    assert of(losses, rows_of(name), is_by_token=False).spread > INEXACT
