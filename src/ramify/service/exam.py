"""Exam: the answers of the policy to one data set, as samples: chains, in memory, apart from what is trained.

Nothing of it reaches a journal, a buffer or a batch.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from ramify.config.run_config import RowsConfig, RunConfig, StrategyConfig, TaskConfig
from ramify.config.service_config import EvalConfig
from ramify.core.engine import Engine
from ramify.core.limits import Limits
from ramify.core.stop import STOP_WORDS
from ramify.core.task import Task
from ramify.core.tree import Tree
from ramify.rows.sample import Sample
from ramify.runner import build, library
from ramify.service.reward import sample_of_branch
from ramify.tasks.data import read_problems


async def answered(
    config: RunConfig, exam: EvalConfig, engine: Engine, *, judged: Callable[[Task], Task] = lambda task: task
) -> list[Sample]:
    """`exam.repeats` answers to each problem, sampled from `engine` by the run's own actions and limits of growth.

    `judged` may change who judges. A chain that no judge could score has no reward; one that failed is left out of the
    answers, and its problem has fewer. Raises `ConfigError`.
    """
    settings = _settings(config, exam)
    task = judged(build.build_task(settings))
    problems = read_problems(exam.data)[0][: exam.prompts] if _has_data(exam) else None
    grown = await library.rollout(problems, config=settings, engine=engine, task=task)
    return [sample for group, tree in enumerate(grown.trees) for sample in _samples(tree, group, exam.repeats)]


def _has_data(exam: EvalConfig) -> bool:
    return exam.data.path is not None or bool(exam.data.questions)


def _settings(config: RunConfig, exam: EvalConfig) -> RunConfig:
    """The run that sits the exam."""
    own: Mapping[str, Any] = config.task.options if exam.task in (None, config.task.name) else {}
    name = exam.task or ("data" if _has_data(exam) else config.task.name)
    return replace(
        config,
        task=TaskConfig(name=name, split=exam.split, options={**own, **exam.options}),
        data=exam.data,
        prompts=exam.prompts,
        seed=exam.seed,
        strategy=StrategyConfig(name="chains", options={"n": exam.repeats}),
        growth=config.growth.without_coin,
        rows=RowsConfig(),
        limits=Limits(),
        judges={},
        service=None,
    )


def _samples(tree: Tree, group: int, repeats: int) -> list[Sample]:
    """One sample a leaf of a tree of chains."""
    made: list[Sample] = []
    for place, leaf in enumerate(tree.leaves()):
        sample = sample_of_branch(tree.branch(leaf), tree.problem)
        sample.group_index, sample.index = group, group * repeats + place
        sample.reward = tree.reward(leaf)
        if STOP_WORDS[tree.stop(leaf) or ""].is_truncated:
            sample.status = Sample.Status.TRUNCATED
        made.append(sample)
    return made
