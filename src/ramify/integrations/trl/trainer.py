# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
# TRL and torch are not in the development environment: pip install 'ramify[train]'.
"""Trainer: TRL's `GRPOTrainer` on rollout trees. Every token has its own advantage, and is trained once.

TRL's loop, optimiser, checkpoints and logs are as they are. Replaced is where a batch comes from: the rollout service
grows `generation_batch_size / num_generations` trees with the weights of now, and all their leaves become rows. TRL
samples nothing, calls no reward function and compares no group; the credit is the run's.
"""

import logging
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import torch
import trl
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from ramify.config.run_config import RunConfig
from ramify.config.service_config import ServiceConfig
from ramify.core.engine import Engine
from ramify.core.errors import ConfigError
from ramify.core.task import Task
from ramify.integrations.trl.batch import tensors, versions
from ramify.integrations.trl.rollouts import Rollouts, Weights
from ramify.integrations.trl.settings import CHECKED, batch_period, refuse_inexact, updates_per_batch
from ramify.rows.sample import Sample

LOGGER: Final = logging.getLogger("ramify")
MAX_GAP: Final = 0.1
"""Largest mean difference, in nats, between the logprobs of the engine and of the trainer for tokens of the same
weights. Between two float32 networks of the built-in model it is 1e-6."""
NOTED: Final = 1e-3
GROWN: Final = 10.0
"""A mean difference above `NOTED` nats, and so many times that of the first batch, is logged: vLLM 0.32 on CPUs keeps
the old output layer of a model that ties it to its embedding, and says nothing."""
ALIKE: Final = "sampling/sampling_logp_difference"
"""TRL's name for that difference."""
CLIPPED: Final = "clip_ratio/"
"""TRL's names of shares of tokens begin with it."""


class TreeGRPOTrainer(GRPOTrainer):
    """A `GRPOTrainer` without reward functions and data set: `config` is a run of `ramify`, which has a task, an
    engine, a strategy and a credit. Needs the extra `train`. Raises `ConfigError`.

    - `model`: a folder of Hugging Face, or a model; not one of PEFT.
    - `args`: TRL's. `loss_type` is `dr_grpo` or `luspo`, `beta` 0, and there is one process; see docs/guides/trl.md.
    - `engine`, `task`: used in place of those that `config` names.
    - `weights`: how the engine gets new weights: by a `folder`, or in `memory` for the engine `local`.
    - `out`: folder of the trees; None = `trees` in `args.output_dir`.
    - `has_tables`: whether each evaluation is printed as a table.
    """

    def __init__(
        self,
        model: Any,
        config: RunConfig,
        args: GRPOConfig,
        *,
        engine: Engine | None = None,
        task: Task | None = None,
        weights: Weights = "folder",
        out: Path | str | None = None,
        has_tables: bool = True,
        **others: Any,
    ) -> None:
        """`others`: `processing_class`, `callbacks`, `optimizers` of `GRPOTrainer`."""
        if trl.__version__ != CHECKED:
            LOGGER.warning("TRL %s: trees were checked with %s; run its factor tests", trl.__version__, CHECKED)
        refuse_inexact(args, config)
        self._num_trees = args.generation_batch_size // args.num_generations
        service = replace(config.service or ServiceConfig(), batch_size=self._num_trees)
        path = Path(args.output_dir, "trees") if out is None else Path(out)
        config = replace(config, service=service)
        self.rollouts = Rollouts(config, path, engine=engine, task=task, weights=weights, has_tables=has_tables)
        places = Dataset.from_dict({"prompt": [""] * len(self.rollouts.manager.run.prepared.problems)})
        super().__init__(
            model=model,
            reward_funcs=_rewards_of_trees,  # TRL wants one; it is never called
            args=args,
            train_dataset=places,
            eval_dataset=places if args.eval_strategy != "no" else None,
            **others,
        )
        self._refuse_model()
        self._forward: list[Any] | None = None
        """While a loss is computed: what its one forward pass gave."""
        self._told: set[str] = set()
        """What was logged once: reasons why rows are not exact, without their numbers, and `gap`."""
        self._first_gap: float | None = None
        """Mean difference between the logprobs of the engine and of the trainer, at the first batch."""

    def train(self, *args: Any, **options: Any) -> Any:
        """As in TRL. The service is closed at the end, and opened again by what needs it."""
        try:
            return super().train(*args, **options)
        finally:
            self.rollouts.close()

    def evaluate(self, *_: Any, metric_key_prefix: str = "eval", **__: Any) -> dict[str, float]:
        """Answer the data sets of `service.eval` with the weights of now, log the figures and return them."""
        found = self.rollouts.evaluate(self._num_trained, self.accelerator.unwrap_model(self.model))
        metrics = {f"{metric_key_prefix}_{name.removeprefix('eval/')}": value for name, value in found.items()}
        is_training = self.model.training
        self.model.eval()  # TRL logs the figures of updates otherwise
        self.log(metrics)
        self.model.train(is_training)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    # -- TRL's methods that trees replace ------------------------------------------------------------------------------

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        """The next batch of trees, whatever the data loader gave."""
        number, sampled_before = self._num_trained, self.rollouts.num_sampled
        self._step = number * batch_period(self.args)  # TRL begins at 0 when it resumes
        batch = self.rollouts.batch(number, self.accelerator.unwrap_model(self.model))
        self._warn_of_inexact(batch.samples)
        made = tensors(
            batch.samples,
            num_trees=self._num_trees,
            multiple_of=self.args.steps_per_generation,
            pad_id=self._tokenizer.pad_token_id,
        )
        made = {name: tensor.to(self.accelerator.device) for name, tensor in made.items()}
        is_fresh = all(version == number for sample in batch.samples for version in versions(sample))
        if not is_fresh or updates_per_batch(self.args) > 1:
            made["old_per_token_logps"] = self._sampled_logps(made)
        else:
            made.pop("positive", None)  # nothing is clipped
            if "sampling_per_token_logps" in made:
                made["is_fresh"] = torch.ones(len(made["advantages"]), 1, device=self.accelerator.device)
        made["num_items_in_batch"] = made["tool_mask"].sum()
        others = {"completions/sampled_tokens": self.rollouts.num_sampled - sampled_before}
        self._log_batch(batch.samples, {**batch.metrics, **others}, made)
        return made

    def _get_per_token_logps_and_entropies(self, *args: Any, **options: Any) -> Any:
        if self._forward:
            return self._forward[0]
        found = super()._get_per_token_logps_and_entropies(*args, **options)
        if self._forward is not None:
            self._forward.append(found)
        return found

    def _compute_loss(self, model: Any, inputs: Any) -> Any:
        self._forward = []
        try:
            is_in_parts = "positive" in inputs
            loss = self._clipped_by_parts(model, inputs) if is_in_parts else super()._compute_loss(model, inputs)
            if "is_fresh" in inputs:
                self._compare(inputs, self._forward[0][0].detach())
            return loss
        finally:
            self._forward = None

    def _clipped_by_parts(self, model: Any, inputs: Any) -> Any:
        """TRL's loss of the positive and of the negative parts of the advantages, by one forward pass: the sum of the
        clipped losses of every leaf (docs/concepts/credit.md)."""
        positive = inputs["positive"]
        loss = super()._compute_loss(model, {**inputs, "advantages": positive})
        has_aux, self.aux_loss_enabled = self.aux_loss_enabled, False
        loss = loss + super()._compute_loss(model, {**inputs, "advantages": inputs["advantages"] - positive})
        self.aux_loss_enabled = has_aux
        for name, values in self._metrics["train"].items():
            if name.startswith(CLIPPED) and len(values) > 1:
                values[-2:] = [sum(values[-2:])]  # of tokens that are clipped in one part or the other
        return loss

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        self.rollouts.mark(self._num_trained)
        super()._save_checkpoint(model, trial)

    # -- inside --------------------------------------------------------------------------------------------------------

    @property
    def _num_trained(self) -> int:
        """Batches that were trained."""
        return self.state.global_step // updates_per_batch(self.args)

    def _refuse_model(self) -> None:
        if hasattr(self.model, "peft_config"):
            raise ConfigError("a PEFT model: the engines load whole weights; train the merged model")
        known, used = self.model.config.vocab_size, self.rollouts.manager.run.prepared.codec.vocab_size
        if used > known:
            raise ConfigError(
                f"the engine's tokenizer has {used} ids, the model {known}: engine.model must be the trained model"
            )

    def _warn_of_inexact(self, samples: Sequence[Sample]) -> None:
        """Log, once each, why the credit of rows is not exact. Reasons that differ in a number are one."""
        said = (sample.metadata.get("ramify") or {} for sample in samples)
        for reason in sorted({reason for row in said for reason in row.get("reasons", ())}):
            if (kind := re.sub(r"\d+", "", reason)) not in self._told:
                LOGGER.warning("the gradient of these trees is not exact: %s", reason)
                self._told.add(kind)

    def _sampled_logps(self, made: dict[str, Any]) -> Any:
        """Logprobs under the policies that sampled: the denominators of the importance ratios."""
        capabilities = self.rollouts.manager.run.prepared.engine.capabilities
        if "sampling_per_token_logps" not in made:
            raise ConfigError(
                f"engine {capabilities.name!r} gives no logprobs, and the policy has moved since tokens were sampled: "
                "make one update a batch, with service.max_staleness = 0"
            )
        if capabilities.logprobs == "raw" and self.temperature != 1:
            raise ConfigError(
                f"engine {capabilities.name!r} gives logprobs at temperature 1, the policy samples at "
                f"{self.temperature:g}, and it has moved since: make one update a batch, with service.max_staleness = 0"
            )
        return made["sampling_per_token_logps"]

    def _compare(self, inputs: dict[str, Any], logps: Any) -> None:
        """Log how far the trainer's logprobs are from the engine's. Raises `ConfigError` for another model's."""
        is_raw = self.rollouts.manager.run.prepared.engine.capabilities.logprobs == "raw"
        if is_raw and self.temperature != 1:
            return
        gaps = (logps - inputs["sampling_per_token_logps"]).abs()[inputs["tool_mask"] > 0]
        if not len(gaps):
            return
        mean = float(gaps.mean())
        self._metrics["train"][f"{ALIKE}/mean"].append(mean)
        self._metrics["train"][f"{ALIKE}/max"].append(float(gaps.max()))
        if self._first_gap is None:
            self._first_gap = mean
        elif mean > max(GROWN * self._first_gap, NOTED) and "gap" not in self._told:
            self._told.add("gap")
            LOGGER.warning(
                "logprobs of the engine were %.2g nats apart from the trainer's at the first batch, and are %.2g now: "
                "the engine may not have loaded all of the last weights",
                self._first_gap,
                mean,
            )
        if not mean <= MAX_GAP:
            raise ConfigError(
                f"logprobs of the trainer and of the engine are {mean:.3g} nats apart in the mean, {MAX_GAP} are "
                "allowed: the engine has another model, tokenizer or temperature than the trainer"
            )

    def _log_batch(self, samples: Sequence[Sample], metrics: Any, made: dict[str, Any]) -> None:
        """Under TRL's names, where it has one."""
        logged = self._metrics["train"]
        lengths = made["completion_mask"].sum(1)[: len(samples)].float()
        figures = {
            "num_tokens": float(self.state.num_input_tokens_seen),
            "completions/mean_length": float(lengths.mean()),
            "completions/max_length": float(lengths.max()),
            "completions/trained_tokens": float(made["tool_mask"].sum()),
            "reward": metrics.get("rollout/raw_reward", float("nan")),
            **{f"seconds/{part}": value for part, value in self.rollouts.seconds.items()},
            **{name: value for name, value in metrics.items() if isinstance(value, int | float)},
        }
        self.state.num_input_tokens_seen += int(made["prompt_mask"].sum() + made["completion_mask"].sum())
        for name, value in figures.items():
            logged[name].append(float(value))


def _rewards_of_trees(*_: Any, **__: Any) -> list[float]:
    raise AssertionError("rewards are those of the trees")
