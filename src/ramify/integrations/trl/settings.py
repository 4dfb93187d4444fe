"""Settings: which of TRL's train trees exactly. Everything else is refused before anything is grown.

Source: TRL 1.16.0, trl/trainer/grpo_trainer.py `_compute_loss`. The factor tests in tests/trainers/test_trl.py measure
that loss on our rows.
"""

from collections.abc import Iterator
from typing import Any, Final

from ramify.config.run_config import RunConfig
from ramify.core.errors import ConfigError

CHECKED: Final = "1.16.0"
"""The version of TRL whose loss and batches were checked."""
EXACT_LOSSES: Final = ("dr_grpo", "luspo")
"""Losses that divide by a constant."""
REQUIRED: Final = {
    "loss_type": (
        EXACT_LOSSES,
        "the others divide by a number of tokens, which differs from row to row or batch to batch",
    ),
    "beta": ((0.0,), "TRL adds the KL term once a row, not once a token of the tree"),
    "importance_sampling_level": (("token",), "a ratio of a sequence belongs to a leaf, not to a token of the tree"),
    "top_entropy_quantile": ((1.0,), "tokens would be left out by their entropy"),
    "entropy_coef": ((0.0,), "TRL takes the mean of the entropy over rows, not over tokens of the tree"),
    "use_adaptive_entropy": ((False,), "TRL takes the mean of the entropy over rows, not over tokens of the tree"),
    "off_policy_mask_threshold": ((None,), "rows would be left out by a mean over the row"),
    "mask_truncated_completions": ((False,), "leaves would be left out, and their share of the credit with them"),
    "use_vllm": ((False,), "trees grow on the engine of the run: engine.name = 'vllm'"),
    "use_liger_kernel": ((False,), "it takes one advantage a row"),
}
"""Argument of `GRPOConfig` -> values that are exact, and why others are not. Arguments of newer versions that this one
lacks are not checked."""


def refuse_inexact(args: Any, config: RunConfig) -> None:
    """Raise `ConfigError` for the first setting of `args` (a `GRPOConfig`) by which tokens would not be trained with
    their credit, or which does not go with the run."""
    for name, (allowed, why) in REQUIRED.items():
        if hasattr(args, name) and getattr(args, name) not in allowed:
            wanted = " or ".join(map(repr, allowed))
            raise ConfigError(f"GRPOConfig.{name} = {getattr(args, name)!r}: set {wanted}; {why}")
    for problem in _problems(args, config):
        raise ConfigError(problem)


def batch_period(args: Any) -> int:
    """Micro-batches that are trained on one batch of trees."""
    return args.steps_per_generation * args.num_iterations


def updates_per_batch(args: Any) -> int:
    """Optimiser steps on one batch of trees; from the second on, the policy is no longer the one that sampled."""
    return batch_period(args) // args.gradient_accumulation_steps


def _problems(args: Any, config: RunConfig) -> Iterator[str]:
    policy = config.actions["policy"].sampling
    if args.world_size != 1:
        yield f"{args.world_size} processes: every one would grow the whole batch; train with one process"
    if args.max_completion_length is None and args.loss_type == "dr_grpo":
        yield "GRPOConfig.max_completion_length = None: the loss dr_grpo divides by it; set a number"
    if args.temperature != policy.temperature:
        yield (
            f"GRPOConfig.temperature = {args.temperature:g}, the run samples at {policy.temperature:g} "
            "(actions.policy.sampling.temperature): both must be the same"
        )
    if policy.temperature == 0 or policy.top_p != 1 or policy.top_k != 0:
        yield f"actions.policy.sampling = {policy!r}: a gradient needs a temperature above 0, top_p = 1 and top_k = 0"
    if batch_period(args) % args.gradient_accumulation_steps:
        yield (
            f"a batch is trained in {batch_period(args)} micro-batches (steps_per_generation * num_iterations), an "
            f"update takes {args.gradient_accumulation_steps} (gradient_accumulation_steps): it must divide them"
        )
    elif args.save_strategy == "steps" and args.save_steps % updates_per_batch(args):
        yield (
            f"GRPOConfig.save_steps = {args.save_steps:g}: a batch has {updates_per_batch(args)} updates, and only "
            "between two batches can training go on from a checkpoint; set a multiple of it"
        )
