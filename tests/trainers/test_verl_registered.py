"""The estimator and the loss that verl finds under our name: exact on our rows, and refused where they are not."""

import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.trainers.factor import BATCHES, differentiated, drift, factor, rows_of, stated

from ramify.core.errors import ConfigError
from ramify.rows import verl

pytestmark = [
    pytest.mark.trainers,
    pytest.mark.filterwarnings("ignore"),  # of other people's libraries
]
core_algos = pytest.importorskip("verl.trainer.ppo.core_algos", reason="verl is not installed: make test-trainers")

NAME = "ramify"


def actor(**settings: Any) -> Any:
    from verl.workers.config import ActorConfig

    made = ActorConfig(strategy="fsdp", rollout_n=1, ppo_micro_batch_size_per_gpu=1, **settings)
    made.global_batch_info.update({"batch_num_tokens": 1, "global_batch_size": 1})
    return made


def arguments(**algorithm: Any) -> dict[str, Any]:
    import torch

    ones = torch.ones(1, 2)
    return {"token_level_rewards": ones, "response_mask": ones, "config": SimpleNamespace(**algorithm)}


@pytest.mark.parametrize("name", BATCHES)
def test_rows_go_through_verl_with_their_credit(name: str) -> None:
    """The estimator as verl's `compute_advantage` calls it, and the loss of our name, differentiated."""
    import torch
    from verl import DataProto
    from verl.trainer.config.algorithm import AlgoConfig

    import ramify.integrations.verl  # noqa: F401 - registers

    rows = rows_of(name)
    batch = DataProto.from_single_dict(verl.batch(rows).single_dict())
    mask, moved = batch.batch["response_mask"], drift(stated(rows))
    advantages, returns = core_algos.get_adv_estimator_fn(NAME)(
        token_level_rewards=batch.batch["rm_scores"],
        response_mask=mask,
        config=AlgoConfig(adv_estimator=NAME),
        index=batch.non_tensor_batch["uid"],
    )
    assert torch.equal(advantages, returns)
    config = actor()
    config.global_batch_info.update({"global_batch_size": len(batch)})
    old = torch.full(mask.shape, -1.0).double()

    def loss(logprobs: Any) -> Any:
        policy_loss = core_algos.get_policy_loss_fn(NAME)
        return policy_loss(old, logprobs, advantages, mask, "seq-mean-token-sum", config)[0]

    found = factor(differentiated(loss, old + torch.tensor(moved)), stated(rows) * np.exp(moved))
    assert found.is_exact, found


def test_verl_imports_it_by_its_variable() -> None:
    """As `main_ppo` does, in a process of its own."""
    script = "from verl.trainer.ppo.core_algos import get_adv_estimator_fn as f; print(f('ramify').__name__)"
    variables = {**os.environ, "VERL_USE_EXTERNAL_MODULES": "ramify.integrations.verl"}
    done = subprocess.run([sys.executable, "-c", script], env=variables, capture_output=True, text=True, check=True)
    assert done.stdout.split()[-1] == "tree_advantages"


@pytest.mark.parametrize(
    ("algorithm", "said"),
    [
        ({"use_kl_in_reward": True}, "use_kl_in_reward"),
        ({"filter_groups": SimpleNamespace(enable=True)}, "filter_groups"),
        ({"rollout_correction": SimpleNamespace(rollout_is="sequence", rollout_rs=None)}, "set 'token'"),
        ({"rollout_correction": SimpleNamespace(rollout_is="token", rollout_rs="token_k1")}, "rollout_rs = 'token_k1'"),
    ],
)
def test_settings_of_the_algorithm_that_are_not_exact(algorithm: dict[str, Any], said: str) -> None:
    from ramify.integrations.verl import tree_advantages

    with pytest.raises(ConfigError, match=said):
        tree_advantages(**arguments(**algorithm))


@pytest.mark.parametrize(
    ("mode", "settings", "said"),
    [
        ("token-mean", {}, "loss_agg_mode = 'token-mean'"),
        ("seq-mean-token-mean", {}, "set 'seq-mean-token-sum'"),
        ("seq-mean-token-sum", {"use_kl_loss": True}, "use_kl_loss"),
        ("seq-mean-token-sum", {"entropy_coeff": 0.01}, "entropy_coeff = 0.01"),
    ],
)
def test_settings_of_the_actor_that_are_not_exact(mode: str, settings: dict[str, Any], said: str) -> None:
    import torch

    from ramify.integrations.verl import tree_policy_loss

    ones = torch.ones(1, 2)
    with pytest.raises(ConfigError, match=said):
        tree_policy_loss(ones, ones, ones, ones, mode, actor(**settings))
