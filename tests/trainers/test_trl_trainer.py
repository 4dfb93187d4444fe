"""Our `GRPOTrainer` trains exactly the rows of its trees, goes on from a checkpoint to the same weights, and refuses
what would train something else."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

from ramify import ConfigError, Saved, resolve
from ramify.engines.shipped import MODELS

pytestmark = [
    pytest.mark.trainers,
    pytest.mark.filterwarnings("ignore"),  # of other people's libraries
]
pytest.importorskip("trl", reason="trl is not installed: make test-trainers")

HERDS: Final = str(MODELS["herds"])
NUM_TREES: Final = 3
LENGTH: Final = 128
"""`max_completion_length`, a constant of the loss."""
PRESETS: Final[Mapping[str, Mapping[str, Any]]] = {
    "chains": {"strategy.options.n": 4},
    "planned": {"strategy.options.children": [2.0, 0.6, 2.0]},
}


def config(preset: str = "planned", **flags: Any) -> Any:
    settings = {"task.name": "herds", "task.split": "train", "prompts": 16, "engine.model": "herds"}
    return resolve(preset=preset, flags={**settings, **PRESETS[preset], **flags}).config


def arguments(folder: Path, **others: Any) -> Any:
    from trl import GRPOConfig

    settings = {
        "loss_type": "dr_grpo", "beta": 0.0, "use_cpu": True, "bf16": False, "report_to": "none", "num_generations": 4,
        "per_device_train_batch_size": 4 * NUM_TREES, "max_completion_length": LENGTH, "gradient_checkpointing": False,
        "learning_rate": 3e-4, "lr_scheduler_type": "constant", "max_steps": 1, "save_strategy": "no",
        "disable_tqdm": True, "logging_steps": 1,
    }  # fmt: skip
    return GRPOConfig(str(folder), **{**settings, **others})


def trainer(folder: Path, run: Any = None, model: str = HERDS, **others: Any) -> Any:
    from ramify.integrations.trl import TreeGRPOTrainer

    return TreeGRPOTrainer(model, run or config(), arguments(folder, **others))


def weights(model: Any) -> np.ndarray:
    """(D,) all parameters, shared ones once."""
    return np.concatenate([parameter.detach().numpy().ravel() for parameter in model.parameters()])


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("num_micro", [1, 2])
@pytest.mark.parametrize(("loss_type", "divisor"), [("dr_grpo", LENGTH), ("luspo", 1)])
def test_a_step_is_along_the_gradient_of_the_rows(
    preset: str, num_micro: int, loss_type: str, divisor: int, tmp_path: Path
) -> None:
    from ramify.train.policy_gradient import PolicyGradient

    made = trainer(
        tmp_path, config(preset), loss_type=loss_type, optim="sgd", learning_rate=1e3 * divisor / LENGTH,
        max_grad_norm=1e9, per_device_train_batch_size=4 * NUM_TREES // num_micro,
        gradient_accumulation_steps=num_micro,
    )  # fmt: skip
    before = weights(made.model)
    made.train()
    rows = Saved.open(tmp_path / "trees" / "service").rows()
    wanted = PolicyGradient(HERDS).of(rows) / (NUM_TREES * LENGTH)  # the learning rate evens the divisors
    assert np.abs((weights(made.model) - before) / 1e3 - wanted).max() < 1e-4 * np.abs(wanted).max()


def test_a_credit_that_is_not_exact_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trainer(tmp_path, config("chains", credit="leaf_grpo"), max_steps=2).train()
    told = [record.message for record in caplog.records if "not exact" in record.message]
    assert told
    assert len(told) == len(set(told))


def test_several_updates_a_batch_count_tokens_by_their_ratio(tmp_path: Path) -> None:
    made = trainer(tmp_path, steps_per_generation=3, gradient_accumulation_steps=1, per_device_train_batch_size=4,
                   generation_batch_size=None, max_steps=6)  # fmt: skip
    made.train()
    assert made.state.global_step == 6
    assert made._num_trained == 2
    assert len(list(Saved.open(tmp_path / "trees" / "service").trees())) == 2 * NUM_TREES


def test_batches_that_grow_ahead_count_tokens_by_their_ratio(tmp_path: Path) -> None:
    made = trainer(tmp_path, config(**{"service.max_staleness": 1}), max_steps=4)
    made.train()
    stale = [log["rollout/staleness/mean"] for log in made.state.log_history if "rollout/staleness/mean" in log]
    assert stale[0] == 0
    assert max(stale) == 1


@pytest.mark.parametrize("way", ["folder", "memory"])
def test_the_engine_local_gets_the_weights(way: str, tmp_path: Path) -> None:
    from ramify.integrations.trl import TreeGRPOTrainer

    run = config(**{"engine.name": "local", "engine.model": HERDS})
    made = TreeGRPOTrainer(HERDS, run, arguments(tmp_path, max_steps=2, learning_rate=1e-2), weights=way)  # type: ignore[arg-type]
    made.train()
    gaps = [log["sampling/sampling_logp_difference/max"] for log in made.state.log_history if "reward" in log]
    assert len(gaps) == 2
    assert max(gaps) < 1e-3


# -- checkpoints -------------------------------------------------------------------------------------------------------

SCRIPT: Final = """
import sys
from pathlib import Path

import torch
from test_trl_trainer import trainer
from transformers import TrainerCallback

torch.set_num_threads(1)
folder, kill_at = Path(sys.argv[1]), int(sys.argv[2])


class Kill(TrainerCallback):
    def on_step_end(self, args, state, control, **_):
        if state.global_step == kill_at:
            import os, signal
            os.kill(os.getpid(), signal.SIGKILL)


made = trainer(folder, max_steps=5, save_strategy="steps", save_steps=2)
made.add_callback(Kill())
made.train(resume_from_checkpoint=any(folder.glob("checkpoint-*")))
made.save_model(folder / "end")
"""


def trained(folder: Path, kill_at: int) -> int:
    """The exit code of a process that trains five steps, or is killed after one of them."""
    command = [sys.executable, "-c", SCRIPT, str(folder), str(kill_at)]
    return subprocess.run(command, check=False, env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)}).returncode


def test_training_that_was_killed_ends_with_the_same_weights(tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert trained(whole, 0) == 0
    for kill_at in (1, 3):  # before the first checkpoint, and after it
        assert trained(cut, kill_at) == -signal.SIGKILL
    assert trained(cut, 0) == 0
    assert (cut / "end" / "model.safetensors").read_bytes() == (whole / "end" / "model.safetensors").read_bytes()


def test_another_runs_checkpoint_is_refused(tmp_path: Path) -> None:
    made = trainer(tmp_path, max_steps=2, save_strategy="steps", save_steps=1)
    made.train()
    with pytest.raises(ConfigError, match=r"can go on from \[0, 1, 2\] batches, the trainer has trained 7"):
        made.rollouts.mark(7)
    with pytest.raises(ConfigError, match="not started"):  # it holds no folder any more
        _ = made.rollouts.manager.counts


def test_figures_on_held_out_problems(tmp_path: Path) -> None:
    run = config(**{"service.eval": {"herds": {"prompts": 8, "repeats": 2}}})
    made = trainer(tmp_path, run, eval_strategy="steps", eval_steps=1, max_steps=2)
    made.train()
    found = [log for log in made.state.log_history if any(name.startswith("eval_") for name in log)]
    assert len(found) == 2


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("others", "said"),
    [
        ({"loss_type": "grpo"}, "loss_type = 'grpo': set 'dr_grpo' or 'luspo'"),
        ({"loss_type": "dapo"}, "loss_type = 'dapo'"),
        ({"beta": 0.04}, "beta = 0.04: set 0.0"),
        ({"importance_sampling_level": "sequence"}, "set 'token'"),
        ({"top_entropy_quantile": 0.2}, "top_entropy_quantile"),
        ({"entropy_coef": 0.01}, "entropy_coef"),
        ({"off_policy_mask_threshold": 0.5}, "off_policy_mask_threshold"),
        ({"mask_truncated_completions": True}, "mask_truncated_completions"),
        ({"temperature": 0.7}, "both must be the same"),
        ({"gradient_accumulation_steps": 2, "steps_per_generation": 3}, "it must divide them"),
        (
            {"steps_per_generation": 2, "gradient_accumulation_steps": 1, "save_strategy": "steps", "save_steps": 3},
            "a batch has 2 updates",
        ),
    ],
)
def test_settings_that_are_not_exact(others: Mapping[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=said):
        trainer(tmp_path, **others)


def test_a_truncated_distribution(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="top_p = 1"):
        trainer(tmp_path, config(**{"actions.policy.sampling.top_p": 0.9}))


def test_weights_in_memory_for_an_engine_that_reads_folders(tmp_path: Path) -> None:
    from ramify.integrations.trl import TreeGRPOTrainer

    with pytest.raises(ConfigError, match="for the engine 'local' in this process; 'builtin' reads a folder"):
        TreeGRPOTrainer(HERDS, config(), arguments(tmp_path), weights="memory")


def test_an_engine_with_other_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = trainer(tmp_path, config(**{"engine.model": "builtin"}))
    monkeypatch.setattr(made.rollouts, "_push", lambda number, _: made.rollouts._open(number))
    with pytest.raises(ConfigError, match="nats apart in the mean"):
        made.train()


def test_another_version_of_trl_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("trl.__version__", "1.99.0")
    trainer(tmp_path)
    assert "TRL 1.99.0: trees were checked with 1.16.0" in caplog.text


LEAVES = ("leaf_grpo", "leaf_loo")


def test_an_engine_that_loads_no_weights_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from ramify.engines.builtin import Builtin

    load = Builtin.update_weights
    monkeypatch.setattr(Builtin, "update_weights", lambda self, _, version: load(self, HERDS, version))
    trainer(tmp_path, max_steps=4, learning_rate=2e-4).train()
    told = [
        record.message for record in caplog.records if "may not have loaded all of the last weights" in record.message
    ]
    assert len(told) == 1
    assert "nats apart from the trainer's at the first batch" in told[0]


@pytest.mark.parametrize("credit", LEAVES)
def test_both_parts_of_an_advantage_are_clipped(credit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The gradient of a token that leaves of both signs share is the sum over each leaf's own row."""
    import torch
    from tests.rows.batches import totals
    from trl import GRPOTrainer

    from ramify import rollout_sync
    from ramify.integrations.trl.batch import tensors
    from ramify.rows import rows_of
    from ramify.rows.slime import samples

    grown = rollout_sync(config=config(prompts=6, seed=3))
    made = trainer(tmp_path, num_iterations=2)
    made.current_gradient_accumulation_steps = 1
    made.model.train()

    def gradient(policy: Any) -> tuple[dict[Any, float], bool]:
        """Sum over rows of what each token's logprob gets, and whether some token has both parts."""
        rows = [row for tree in grown.trees for row in rows_of(tree, credit=credit, policy=policy, normaliser=4.0)]
        inputs = tensors(samples(rows), num_trees=6, multiple_of=1, pad_id=0)
        length = inputs["completion_ids"].shape[1]
        moved = torch.zeros(len(rows), length)
        for number, row in enumerate(rows):  # by the token, whichever row has it
            drift = [np.random.default_rng([7, span.node]).normal(0, 0.4, span.num_tokens) for span in row.spans]
            response = np.concatenate(drift)[row.num_prompt :]
            moved[number, : len(response)] = torch.from_numpy(response)
        inputs["old_per_token_logps"] = torch.full_like(moved, -1.0)
        logprobs = (moved - 1.0).requires_grad_()
        forward = lambda *_, **__: (logprobs, torch.zeros_like(logprobs), None)  # noqa: E731
        monkeypatch.setattr(GRPOTrainer, "_get_per_token_logps_and_entropies", forward)
        (found,) = torch.autograd.grad(made._compute_loss(made.model, inputs), logprobs)
        return totals(rows, list(found.double().numpy())), "positive" in inputs

    once, is_mixed = gradient("once")
    of_leaves, is_mixed_there = gradient("per_leaf")
    assert is_mixed and not is_mixed_there
    assert once == pytest.approx(of_leaves, abs=1e-7)
    clipped = [values[-1] for name, values in made._metrics["train"].items() if name == "clip_ratio/region_mean"]
    assert 0 < clipped[0] < 1
