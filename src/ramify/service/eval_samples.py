"""Eval samples: samples the policy's answers to one data set, as chains in memory.

They never reach a journal, a buffer or a batch.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from ramify.config.run_config import RowsConfig, RunConfig, StrategyConfig, TaskConfig
from ramify.config.service_config import EvalConfig
from ramify.core.command import Score
from ramify.core.engine import Engine
from ramify.core.limits import Limits
from ramify.core.stop import STOP_WORDS
from ramify.core.task import Task
from ramify.core.tree import Tree
from ramify.rows.sample import Sample
from ramify.runner import build, library
from ramify.service.reward import sample_of_branch
from ramify.tasks.data import read_problems


async def eval_samples(
    config: RunConfig, dataset: EvalConfig, engine: Engine, *, rewarded: Callable[[Task], Task] = lambda task: task
) -> list[Sample]:
    """`dataset.repeats` answers to each problem, sampled from `engine` with the run's own actions and growth limits,
    except for what the data set has of its own.

    `rewarded` may replace the judge. A chain that no judge could score has no reward. A chain that failed is left out,
    so its problem has fewer answers. Raises `ConfigError`.
    """
    settings = _settings(config, dataset)
    task = rewarded(build.build_task(settings))
    problems = read_problems(dataset.data)[0][: dataset.prompts] if _has_data(dataset) else None
    grown = await library.rollout(problems, config=settings, engine=engine, task=task)
    trained = None if config.service is None else config.service.reward_key
    return [each for group, tree in enumerate(grown.trees) for each in _samples(tree, group, dataset, trained)]


def _has_data(dataset: EvalConfig) -> bool:
    return dataset.data.path is not None or bool(dataset.data.questions)


def _settings(config: RunConfig, dataset: EvalConfig) -> RunConfig:
    """The configuration of the run that answers the data set."""
    own: Mapping[str, Any] = config.task.options if dataset.task in (None, config.task.name) else {}
    policy, growth = config.actions["policy"], config.growth.without_coin
    name = dataset.task or ("data" if _has_data(dataset) else config.task.name)
    return replace(
        config,
        task=TaskConfig(name=name, split=dataset.split, options={**own, **dataset.options}),
        data=dataset.data,
        prompts=dataset.prompts,
        seed=dataset.seed,
        strategy=StrategyConfig(name="chains", options={"n": dataset.repeats}),
        actions={**config.actions, "policy": replace(policy, sampling=dataset.sampling(policy.sampling))},
        growth=replace(growth, max_response_tokens=dataset.max_response_tokens or growth.max_response_tokens),
        rows=RowsConfig(),
        limits=Limits(),
        judges={},
        service=None,
    )


def _samples(tree: Tree, group: int, dataset: EvalConfig, trained: str | None) -> list[Sample]:
    """One sample per leaf of a tree of chains. `trained`: the part of a reward that is trained."""
    made: list[Sample] = []
    for place, leaf in enumerate(tree.leaves()):
        sample = sample_of_branch(tree.branch(leaf), tree.problem)
        sample.group_index, sample.index = group, group * dataset.repeats + place
        sample.reward = _reward(tree.reward_score(leaf), dataset.reward_key, trained)
        if STOP_WORDS[tree.stop(leaf) or ""].is_truncated:
            sample.status = Sample.Status.TRUNCATED
        made.append(sample)
    return made


def _reward(score: Score | None, own: str | None, trained: str | None) -> float | Mapping[str, float] | None:
    """The parts of a reward if the data set names one, or if one is trained and the judge gives parts; else its
    value."""
    if score is None or score.value is None:
        return None
    return dict(score.parts) if own is not None or (trained is not None and score.parts) else score.value
