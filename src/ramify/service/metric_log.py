"""Metric log: sends the metrics of batches and evaluations to the console and to trackers, all by the same step
rule."""

from collections.abc import Mapping, Sequence

from rich.console import Console

from ramify.config.service_config import ServiceConfig
from ramify.rows.sample import Sample
from ramify.service.eval_results import EvalResult
from ramify.service.evaluate import EVAL_STEP, ROLLOUT_STEP, StepRule, eval_metrics, rollout_metrics, table
from ramify.trackers.trackers import Trackers, trackers_of


class MetricLog:
    """Mutable. Raises `ConfigError` if a tracker cannot be opened; later faults of trackers are warnings."""

    def __init__(
        self, service: ServiceConfig, *, group_size: int | None, console: Console, has_tables: bool = True
    ) -> None:
        """`group_size`: samples in every group, for the step rule; None = groups differ in size. `has_tables`: whether
        each evaluation is printed as a table."""
        self._console = console
        self._has_tables = has_tables
        self._reward_key = service.reward_key
        self._steps = StepRule(
            always_train_step=service.always_train_step,
            rollout_batch_size=service.batch_size,
            n_samples_per_prompt=group_size,
            global_batch_size=service.global_batch_size,
        )
        self._trackers: Trackers = trackers_of(service.trackers, warn=self._warn)

    def batch(
        self, rollout_id: int, samples: Sequence[Sample], *, version: int, others: Mapping[str, float]
    ) -> Mapping[str, float]:
        """Log a training batch. `version`: that of the weights it trains. `others`: further metrics of the batch."""
        metrics = {**rollout_metrics(samples, version=version, reward_key=self._reward_key), **others}
        self._trackers.log(metrics, step_key=ROLLOUT_STEP, step=self._steps.step(rollout_id))
        return metrics

    def evaluation(
        self, rollout_id: int, results: Sequence[EvalResult], others: Mapping[str, float]
    ) -> Mapping[str, float]:
        """Log an evaluation, and print its table on the console."""
        metrics, step = {**eval_metrics(results), **others}, self._steps.step(rollout_id)
        if results and self._has_tables:
            self._console.print(table(results, step=step))
        self._trackers.log(metrics, step_key=EVAL_STEP, step=step)
        return {**metrics, EVAL_STEP: step}

    def close(self) -> None:
        """Can be called again."""
        self._trackers.close()

    def _warn(self, what: str) -> None:
        self._console.print(f"warning: {what}", style="yellow", markup=False)
