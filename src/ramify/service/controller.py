"""Controller: makes the batches of a service, from trees, by a user's function, or from files.

It owns the data source, the user's functions and the conversion to training data. It does not use the engines itself.
One call at a time.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ramify.config.service_config import EvalConfig, ServiceConfig
from ramify.core.errors import ConfigError, ContractError
from ramify.rows.sample import Sample, sample_of
from ramify.rows.slime import train_data
from ramify.service import debug_files
from ramify.service.eval_results import EvalResult, eval_result, eval_results, numbers
from ramify.service.functions import Function, Functions
from ramify.service.producer import Producer
from ramify.service.source import SampleSource, flat


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """What the trainer trains on next. It is passed on without a copy."""

    rollout_id: int
    samples: list[Sample]
    """Ordered by group: samples with the same `group_index` are adjacent."""
    train_data: Mapping[str, Any] | None
    """Key -> one value per sample, as slime's converter makes them; None under `debug = "rollout_only"`."""
    metrics: Mapping[str, Any] = field(default_factory=dict[str, Any])


class RolloutController:
    """Mutable. `producer` grows the trees; None = a function or files replace it. `answer` samples the policy's answers
    to one data set."""

    def __init__(
        self,
        service: ServiceConfig,
        *,
        functions: Functions,
        data_source: SampleSource,
        producer: Producer | None,
        answer: Callable[[EvalConfig], Awaitable[list[Sample]]],
        args: Any,
    ) -> None:
        self.data_source = data_source
        self.producer = producer
        self._service = service
        self._functions = functions
        self._answer = answer
        self._args = args

    async def generate(self, rollout_id: int) -> Batch:
        """The batch of this number. If trees make it, asking again returns the same batch.

        Raises `ContractError` if a function fails; nothing is lost, and the batch can be asked for again. Also raises
        `StoreError`, and the error that ended the growing.
        """
        metrics: Mapping[str, Any] = {}
        if self._service.load_debug is not None:
            samples = debug_files.load(debug_files.path_of(self._service.load_debug, rollout_id))
        else:
            groups, metrics = await self._groups(rollout_id)
            samples = self._samples(groups)
            if self._service.save_debug is not None:
                path = debug_files.path_of(self._service.save_debug, rollout_id)
                debug_files.save(samples, path, rollout_id=rollout_id)
        data = None if self._service.debug == "rollout_only" else await self._converted(samples)
        return Batch(rollout_id, samples, data, metrics)

    async def evaluate(self, rollout_id: int) -> tuple[list[EvalResult], Mapping[str, float]]:
        """The result of each data set, in order, and the extra metrics of a user's eval function. Raises
        `ContractError` if that function fails."""
        results, others = await self._results(rollout_id)
        if self._service.save_debug is not None:
            samples = [sample for result in results for sample in result.samples or ()]
            path = debug_files.path_of(self._service.save_debug, rollout_id, is_evaluation=True)
            debug_files.save(samples, path, rollout_id=rollout_id)
        return results, others

    async def _results(self, rollout_id: int) -> tuple[list[EvalResult], Mapping[str, float]]:
        ask = self._functions.eval
        if ask is not None:
            said = await ask(self._args, rollout_id, self.data_source, evaluation=True)
            metrics = numbers(getattr(said, "metrics", None) or {}, function=ask.called)
            return eval_results(getattr(said, "data", said), function=ask.called), metrics
        results: list[EvalResult] = []
        for name, dataset in self._service.eval.items():
            key = dataset.reward_key or self._service.reward_key
            results.append(eval_result(name, await self._answer(dataset), reward_key=key))
        return results, {}

    async def _groups(self, rollout_id: int) -> tuple[Sequence[Any], Mapping[str, Any]]:
        """Groups of samples, and the metrics that the rollout function returned with them."""
        if self._functions.rollout is not None:
            said = await self._functions.rollout(self._args, rollout_id, self.data_source, evaluation=False)
            return _output(said, self._functions.rollout)
        if self.producer is None:
            raise ConfigError("the service reads batches from files and grows no trees")
        groups: Sequence[Any] = [group.samples for group in await self.producer.batch(rollout_id)]
        if (mark := self._functions.filters.get("sample_filter")) is not None:
            await mark(self._args, groups, deadline_s=self._service.function_deadline_s)
        return groups, {}

    def _samples(self, groups: Sequence[Any]) -> list[Sample]:
        """The samples of all groups, each checked. Raises `ContractError` if there are none."""
        found = [sample_of(each) for each in flat(groups)]
        if not found:
            raise ContractError("the batch has no sample: there is nothing to train")
        return found

    async def _converted(self, samples: list[Sample]) -> Mapping[str, Any]:
        convert = self._functions.convert
        if convert is None:
            return train_data(samples, reward_key=self._service.reward_key)
        data = await convert(self._args, samples, deadline_s=self._service.function_deadline_s)
        if not isinstance(data, Mapping):
            raise convert.fault(f"returned {data!r:.200}; it must return a mapping of training data")
        return data


def _output(said: Any, function: Function) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """The result of a rollout function: groups, or an object with `samples` and `metrics` (slime:
    RolloutFnTrainOutput)."""
    groups, metrics = getattr(said, "samples", said), getattr(said, "metrics", None) or {}
    if not isinstance(groups, list | tuple):
        raise function.fault(f"returned {said!r:.200}; it must return groups of samples")
    return groups, numbers(metrics, function=function.called)
