"""Slime metrics: the metrics of a batch of trees, under names that the trainer logs beside its own (`rollout/…`)."""

from typing import Final

from ramify.integrations.slime.batch import SlimeBatch

PREFIX: Final = "rollout/ramify/"
DROPPED: Final = "rollout/dynamic_filter/drop_"
"""The trainer's own name for groups that its filter dropped (THUDM/slime slime/rollout/filter_hub/base_types.py)."""


def batch_metrics(batch: SlimeBatch, *, num_lost: int) -> dict[str, float]:
    """Name -> value; what could not be computed is left out. `num_lost`: groups that the data source did not take
    back."""
    report = batch.report.finish(seconds=batch.seconds, tools={}, engines={})
    prefilled = report.prefill_cached + report.prefill_uncached
    found = {
        "trees": report.trees,
        "failed_groups": len(batch.faults),
        "returned_groups": len(batch.returned),
        "lost_groups": num_lost,
        "leaves_a_tree": _share(report.leaves, report.trees),
        "decode_tokens": report.decode_tokens,
        "engine_calls": report.engine_calls,
        "tool_calls": report.tool_calls,
        "prefill_cached_share": _share(report.prefill_cached, prefilled),
        "mean_reward": report.mean_reward,
        "mixed_groups": report.mixed_groups,
        "truncated_share": report.truncated_share,
        "trained_tokens": sum(int((row.weights > 0).sum()) for row in batch.rows),
        "row_tokens": sum(int(row.is_sampled.sum()) for row in batch.rows),
        "unbiased_share": _share(sum(row.is_unbiased for row in batch.rows), len(batch.rows)),
        "seconds": report.seconds,
    }
    metrics = {PREFIX + name: float(value) for name, value in found.items() if value is not None}
    return metrics | {DROPPED + reason: float(number) for reason, number in sorted(batch.reasons.items())}


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None
