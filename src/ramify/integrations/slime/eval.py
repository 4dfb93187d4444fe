"""Slime eval: a trainer's evaluation sets; each question is answered by as many independent chains as the set says.

Rewards of one question are adjacent, so a trainer can group them by position. If the chains of a question failed, it is
left out of its set and counted: a failure is not a reward of 0.
"""

import copy
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

from ramify.config.run_config import RunConfig
from ramify.core.errors import ExportError
from ramify.integrations.background_loop import trainer
from ramify.integrations.evaluation import EvalSampling, evaluation_config
from ramify.integrations.slime.args import SlimeArgs, checked_size, refuse_sets, said_of
from ramify.integrations.slime.batch import GroupsFailed
from ramify.integrations.slime.config import training_config
from ramify.integrations.slime.runs import standing_run
from ramify.integrations.slime.samples import SlimeGroup, fill, group_of
from ramify.integrations.tree_rows import rows_for
from ramify.judges.exact import ANSWER
from ramify.rows.sample import Sample
from ramify.runner.events import Event, TreeClosed
from ramify.runner.run import Run, Seedling
from ramify.tasks.data import DataConfig, read_problems

OF_SOURCE = "data_source"
"""Name of the set of questions from the data source, used if the arguments have no evaluation sets."""


@dataclass(frozen=True, slots=True, eq=False)
class EvalSet:
    """An evaluation set: groups of equal samples, how they are sampled and who rewards them."""

    name: str
    groups: Sequence[list[Any]]
    sampling: EvalSampling
    args: SlimeArgs


@dataclass(frozen=True, slots=True, eq=False)
class SlimeEvalResult:
    """The samples of a set, in order, and why questions are missing."""

    samples: list[Any]
    faults: list[str]


async def evaluated(given_args: Any, rollout_id: int, source: Any) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    """(set -> rewards, truncated and samples; metrics). Raises `GroupsFailed` if no question of a set was answered."""
    args = SlimeArgs.of(given_args)
    refuse_sets(given_args)
    config = training_config(args)
    data: dict[str, dict[str, Any]] = {}
    metrics: dict[str, Any] = {}
    for dataset in eval_sets(given_args, args, source, config.prompts):
        result = await _answered(dataset, config, given_args, rollout_id)
        data[dataset.name] = _columns(result.samples, args.eval_reward_key)
        metrics[f"eval/{dataset.name}-failed"] = len(result.faults)
    return data, metrics


def eval_sets(given_args: Any, args: SlimeArgs, source: Any, num_prompts: int) -> list[EvalSet]:
    """The sets that the arguments name. If the trainer has no such argument, one set of the data source's next
    groups."""
    named = said_of(given_args, "eval_datasets")
    if named is None and not hasattr(given_args, "eval_datasets"):
        groups = source.get_samples(args.num_groups or num_prompts)
        judged = replace(args, reward_key=args.eval_reward_key)
        return [EvalSet(OF_SOURCE, groups, EvalSampling(num_samples=checked_size(groups, None)), judged)]
    return [_named(dataset, given_args, args) for dataset in named or ()]


def _named(dataset: Any, given_args: Any, args: SlimeArgs) -> EvalSet:
    """A set that the arguments describe, with its own reward settings."""
    num_samples = said_of(dataset, "n_samples_per_eval_prompt") or 1
    judged = replace(
        args,
        rm_path=said_of(dataset, "custom_rm_path") or args.rm_path,
        rm_type=said_of(dataset, "rm_type") or args.rm_type,
        reward_key=args.eval_reward_key,
    )
    groups = [[copy.deepcopy(question) for _ in range(num_samples)] for question in _questions(dataset, given_args)]
    for index, sample in enumerate(sample for group in groups for sample in group):
        sample.index = index
    return EvalSet(dataset.name, groups, _sampling(dataset, num_samples), judged)


def _sampling(dataset: Any, num_samples: int) -> EvalSampling:
    """What the trainer's description of an evaluation set says of its sampling."""
    top_k = said_of(dataset, "top_k")
    return EvalSampling(
        num_samples=num_samples,
        temperature=said_of(dataset, "temperature"),
        top_p=said_of(dataset, "top_p"),
        top_k=None if top_k is None else max(0, top_k),
        max_response_tokens=said_of(dataset, "max_response_len"),
    )


def _questions(dataset: Any, given_args: Any) -> list[Any]:
    """One sample per question, read by the trainer if there is one, otherwise by our reader with the same columns."""
    package = trainer()
    if package is None:
        data = DataConfig(path=dataset.path, question=_column(dataset, "input_key", "text"), answer=dataset.label_key)
        problems, _ = read_problems(data)
        return [
            Sample(prompt=each.question, label=each.secret.get(ANSWER), metadata=_metadata(dataset, each.public))
            for each in problems
        ]
    read = import_module(f"{package}.utils.data").Dataset(
        dataset.path,
        None,
        None,
        None,
        prompt_key=_column(dataset, "input_key", "text"),
        label_key=dataset.label_key,
        metadata_key=_column(dataset, "metadata_key", "metadata"),
        tool_key=said_of(dataset, "tool_key"),
    )
    for sample in read.samples:
        sample.metadata = dataset.inject_metadata(sample.metadata)
        sample.custom_rm_path = dataset.custom_rm_path
    return read.samples


def _metadata(dataset: Any, public: Mapping[str, Any]) -> dict[str, Any]:
    """A question's metadata with what its set puts there (THUDM/slime `EvalDatasetConfig.inject_metadata`)."""
    rm_type = said_of(dataset, "rm_type")
    return {
        **public,
        **({} if rm_type is None else {"rm_type": rm_type}),
        **(said_of(dataset, "metadata_overrides") or {}),
    }


def _column(dataset: Any, name: str, otherwise: str) -> str:
    return said_of(dataset, name) or otherwise


async def _answered(dataset: EvalSet, config: RunConfig, given_args: Any, rollout_id: int) -> SlimeEvalResult:
    """Grow a tree of chains for every question. Raises `GroupsFailed` if all of them failed."""
    closed: list[TreeClosed] = []

    def keep(event: Event) -> None:
        if isinstance(event, TreeClosed):
            closed.append(event)

    system = config.opening_system
    groups = [
        group_of(
            given,
            number,
            rollout_id=f"{dataset.name}@{rollout_id}",
            system=system,
            args=given_args,
            reward_key=dataset.args.reward_key,
        )
        for number, given in enumerate(dataset.groups)
    ]
    async with standing_run(evaluation_config(config, dataset.sampling), dataset.args) as run:
        await run.grow_each(_seedlings(groups), [keep])
        return _filled(dataset, run, groups, closed)


async def _seedlings(groups: Sequence[SlimeGroup]) -> AsyncIterator[Seedling]:
    for group in groups:
        yield Seedling(group.number, group.problem)


def _filled(dataset: EvalSet, run: Run, groups: Sequence[SlimeGroup], closed: Sequence[TreeClosed]) -> SlimeEvalResult:
    result = SlimeEvalResult([], [])
    for event in sorted(closed, key=lambda event: event.index):
        group = groups[event.index]
        try:
            rows = rows_for(run, event, len(group.samples))
            fill(group, rows, codec=event.tree.codec, rollouts="leaf", reward_key=dataset.args.reward_key)
        except ExportError as error:
            result.faults.append(str(error))
        else:
            result.samples.extend(group.samples)
    if groups and not result.samples:
        raise GroupsFailed(f"no question of {dataset.name!r} was answered; the last: {result.faults[-1]}")
    return result


def _columns(samples: list[Any], reward_key: str | None) -> dict[str, Any]:
    """The columns of a set that the trainer logs."""
    return {
        "rewards": [s.reward if reward_key is None else s.reward[reward_key] for s in samples],
        "truncated": [s.status == type(s).Status("truncated") for s in samples],
        "samples": samples,
    }
