"""Slime: functions that slime (THUDM/slime) loads by dotted path, to train on trees. See docs/guides/slime.md.

Their names, parameters and results are slime's. Their only state is the runs that are kept between calls (`runs.py`).
`args.py` lists the slime arguments that raise an error. torch is needed on the train side only, by `advantages`.
"""

import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from ramify.core.errors import ConfigError, ExportError
from ramify.credit.group import Kind
from ramify.integrations.background_loop import run_in_background, trainer
from ramify.integrations.slime.args import SlimeArgs, loaded, mean_of, said_of
from ramify.integrations.slime.batch import drawn_batch
from ramify.integrations.slime.eval import evaluated
from ramify.integrations.slime.metrics import batch_metrics
from ramify.integrations.slime.samples import plain_samples
from ramify.rows.sample import Sample
from ramify.rows.slime import even_sums, normalised, train_data

NORMALISING = ("grpo", "gspo", "cispo", "reinforce_plus_plus_baseline")
"""Slime's advantage estimators that compare rewards within a group."""


def generate_rollout(args: Any, rollout_id: int, data_source: Any, evaluation: bool = False) -> Any:
    """`--rollout-function-path`, `--eval-function-path`: groups of filled samples, one tree per group; or the results
    of the evaluation sets.

    Fills the data source's own samples. Returns slime's output with metrics if slime runs, otherwise the bare groups or
    sets. Raises `ConfigError` before anything is drawn. Raises `GroupsFailed`, `EnginesDown` or `TooManyFailures` if
    too much failed; all groups that were drawn are then back in the data source.
    """
    if evaluation:
        data, metrics = run_in_background(evaluated(args, rollout_id, data_source))
        return _output("RolloutFnEvalOutput", data=data, metrics=metrics)
    said = SlimeArgs.of(args)
    batch, num_lost = run_in_background(drawn_batch(args, rollout_id, data_source))
    groups = [group.samples for group in batch.kept]
    if said.sample_filter_path is not None:
        loaded(said.sample_filter_path)(args, groups)
    if said.all_samples_path is not None:
        every = sorted([*batch.kept, *batch.dropped], key=lambda group: group.number)
        loaded(said.all_samples_path)(args, [group.samples for group in every], data_source)
    return _output("RolloutFnTrainOutput", samples=groups, metrics=batch_metrics(batch, num_lost=num_lost))


def convert_samples_to_train_data(args: Any, samples: Sequence[Any]) -> dict[str, list[Any]]:
    """`--custom-convert-samples-to-train-data-path`: the keys of slime's default converter.

    If all samples have per-token advantages, `rewards` holds those, R numbers per row, for `advantages` to read.
    Otherwise it holds rewards normalised by `group_index`. Slime divides a rollout's loss by `rollout_mask_sums`. With
    per-token advantages it is the mean number of trained tokens per rollout, so that every token has the same weight.
    With `ramify_mean: rollouts` it is slime's own sums. Raises `ExportError`, and `ConfigError` for per-token
    advantages under miles.
    """
    batch = plain_samples(samples)
    reward_key = said_of(args, "reward_key")
    data = train_data(batch, reward_key=reward_key)
    data.pop("metadata", None)  # Slime drops it before training, and it is as large as `rewards`.
    if not data["rewards"] or not isinstance(data["rewards"][0], list):
        return {**data, "rewards": _scalar_rewards(args, batch)}
    if trainer() == "miles":
        raise ConfigError(
            "miles takes one float per row as reward and has no custom advantage function: no per-token credit"
        )
    if mean_of(args) == "tokens":
        data["rollout_mask_sums"] = even_sums(data)
    return data


def advantages(args: Any, rollout_data: dict[str, Any]) -> None:
    """`--custom-advantage-function-path`: sets `advantages` and `returns`, lists of float32 tensors, from the per-token
    numbers in `rewards`. Then replaces `rewards` by one reward per row, because slime's log sums them.

    Under context parallelism each tensor is this rank's slice, cut by slime's own function. Raises `ExportError` if
    `rewards` holds no per-token numbers, or not R for a row.
    """
    import torch  # pyright: ignore[reportMissingImports] - the trainer has it

    rewards, lengths = rollout_data["rewards"], rollout_data["response_lengths"]
    _refuse_other_lengths(rewards, lengths)
    totals = rollout_data.get("total_lengths", lengths)
    cut, rows = _context_slice(), zip(rewards, totals, lengths, strict=True)
    made = [cut(torch.tensor(values, dtype=torch.float32), *of) for values, *of in rows]
    if like := rollout_data.get("kl"):
        made = [values.to(other.device) for values, other in zip(made, like, strict=True)]
        _refuse_other_slices(made, like)
    rollout_data["advantages"] = made
    rollout_data["returns"] = list(made)
    rollout_data["rewards"] = rollout_data.get("local_raw_reward", [0.0] * len(made))


def post_process_rewards(args: Any, samples: Sequence[Any]) -> tuple[list[float], list[float]]:
    """`--custom-reward-post-process-path`: (raw rewards, rewards normalised within their groups), for plain GRPO on the
    leaves of trees. Groups go by `group_index`, of any size; if no sample has one, by position.

    Raises `ExportError` if only some samples have one.
    """
    batch = _grouped(plain_samples(samples), said_of(args, "n_samples_per_prompt"))
    has_std = said_of(args, "grpo_std_normalization") is not False
    is_baseline = said_of(args, "advantage_estimator") == "reinforce_plus_plus_baseline"
    kind: Kind = "grpo" if has_std and not is_baseline else "dr_grpo"
    return normalised(batch, kind=kind, reward_key=said_of(args, "reward_key"))


def _output(kind: str, **fields: Any) -> Any:
    """The trainer's own output type. Without a trainer, the first field alone, without the metrics."""
    package = trainer()
    if package is None:
        return next(iter(fields.values()))
    return getattr(import_module(f"{package}.rollout.base_types"), kind)(**fields)


def _scalar_rewards(args: Any, batch: Sequence[Sample]) -> list[float]:
    """Rewards as slime would train them, but grouped by `group_index`."""
    estimator = said_of(args, "advantage_estimator")
    if said_of(args, "rewards_normalization") and estimator in NORMALISING:
        return post_process_rewards(args, batch)[1]
    return [sample.reward_value(said_of(args, "reward_key")) for sample in batch]


def _grouped(batch: list[Sample], num_samples: int | None) -> list[Sample]:
    """The batch with group numbers. If no sample has one, they go by position; without a valid group size, the batch is
    one group."""
    if any(sample.group_index is not None for sample in batch):
        return batch
    size = num_samples if num_samples and len(batch) % num_samples == 0 else len(batch)
    return [Sample.from_dict({**s.to_dict(), "group_index": i // size}) for i, s in enumerate(batch)]


def _context_slice() -> Callable[[Any, int, int], Any]:
    """This rank's slice of R numbers, by slime's own rule; without context parallelism that is all of them."""
    found = sys.modules.get("slime.backends.megatron_utils.cp_utils")
    return (lambda values, total, length: values) if found is None else found.slice_log_prob_with_cp


def _refuse_other_lengths(rewards: Sequence[Any], lengths: Sequence[int]) -> None:
    for row, (values, length) in enumerate(zip(rewards, lengths, strict=True)):
        if not isinstance(values, list) or len(values) != length:
            raise ExportError(
                f"row {row} has {values!r:.60} for its {length} response tokens; per-token advantages come from "
                "--custom-convert-samples-to-train-data-path ramify.integrations.slime.convert_samples_to_train_data"
            )


def _refuse_other_slices(made: Sequence[Any], like: Sequence[Any]) -> None:
    """Raise `ExportError` if a row has another number of advantages than of logprobs: then context parallelism was cut
    by another rule than slime's."""
    for row, (values, other) in enumerate(zip(made, like, strict=True)):
        if len(values) != len(other):
            raise ExportError(f"row {row} has {len(values)} advantages here, and {len(other)} logprobs")
