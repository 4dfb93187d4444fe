# pyright: reportMissingImports=false
"""Inspect: tasks of Inspect (inspect_ai) as an environment (checked with inspect_ai 0.3.285).

The dataset gives the problems, the task's solver the opening messages and the tools, and the task's scorer the score.
A solver runs up to its first question to the model; then ramify asks the model instead. So loops of a solver behind
that question (`react`, several attempts) do not run. Everything of a sample but its opening messages is secret.

Refused by name, before a run: sandboxes other than `local`, and tasks without a sample or a scorer.
"""

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Final, TypeVar

from ramify.core.environment import Noise, RewardRule, Takes
from ramify.core.errors import ConfigError
from ramify.core.problem import Problem
from ramify.core.tool import Branching
from ramify.environments.inspect_episode import SampleEpisode, SampleRules, episode_of
from ramify.environments.inspect_sandbox import sandbox_of
from ramify.formats.messages import MESSAGES

T = TypeVar("T")
INSTALL: Final = "pip install 'ramify[inspect]'"
SAMPLE: Final = "sample"
"""Secret column with the sample, as Inspect writes it to JSON."""


@dataclass(frozen=True, kw_only=True)
class Inspect:
    """A task of Inspect: by its name, by its file, or as an object."""

    name: ClassVar[str] = "inspect"
    takes: ClassVar[Takes] = "turns"
    noise: ClassVar[Noise] = "none"
    reward: ClassVar[RewardRule] = "last"
    needs_secret: ClassVar[bool] = True

    task: Any
    """`package/task`, `file.py@task`, or a `Task`."""
    task_args: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Arguments of a task by name or file."""
    tools: Sequence[Any] = ()
    """Tools instead of the solver's, as objects. The solver then does not run."""
    submit: str = "submit"
    """Name of the tool that submits an answer, if the solver has one."""
    reward_part: str | None = None
    """Which entry of a scorer's dict is the reward; None = the scorer gives one value."""
    branching: Branching = "fork"
    """fork: store and local sandbox are copied. replay: for stores that hold what cannot be copied."""

    @property
    def schemas(self) -> Sequence[Mapping[str, Any]]:
        """The functions of the first sample; all samples must have the same."""
        return self._schemas

    def problems(self, split: str, num_problems: int, seed: int) -> Sequence[Problem]:
        """The first samples of the dataset, in its order. Inspect has no splits: make an environment for each. `seed`
        is not used."""
        samples = self._samples[:num_problems]
        if len(samples) < num_problems:
            raise ConfigError(
                f"the Inspect task {self._task.name!r} has {len(samples)} samples; ask for at most as many, not "
                f"{num_problems}"
            )
        return _alone(self._opened(samples, split))

    async def open(self, problem: Problem, seed: int) -> SampleEpisode:
        from inspect_ai.dataset import Sample

        episode = episode_of(self._rules, Sample.model_validate(problem.secret[SAMPLE]))
        await episode.begin()
        return episode

    def check_start(self) -> None:
        """Raises `ConfigError` for a task that cannot be used in a tree."""
        if not self._samples:
            raise ConfigError(f"the Inspect task {self._task.name!r} has no sample; give it a dataset")
        if not self._task.scorer:
            raise ConfigError(f"the Inspect task {self._task.name!r} has no scorer; give it one for the reward")
        for sample in self._samples:
            sandbox_of(self._task, sample)

    @cached_property
    def _task(self) -> Any:
        """The inspect_ai.Task."""
        try:
            from inspect_ai._eval.loader import load_task_spec
        except ImportError as error:
            raise ConfigError(f"environment 'inspect' needs inspect_ai 0.3.285 ({INSTALL}): {error}") from error
        if not isinstance(self.task, str):
            return self.task
        try:
            found = load_task_spec(self.task, dict(self.task_args))
        except Exception as error:  # boundary to a user's file
            raise ConfigError(
                f"Inspect cannot load the task {self.task!r}: {error}; write package/task or file.py@task"
            ) from error
        if len(found) != 1:
            raise ConfigError(
                f"{self.task!r} names the tasks {[each.name for each in found]} of Inspect; write file.py@task"
            )
        return found[0]

    @cached_property
    def _samples(self) -> list[Any]:
        """All samples; those without an id get their number from 1, as in Inspect."""
        numbered = enumerate(self._task.dataset, 1)
        return [each if each.id is not None else each.model_copy(update={"id": i}) for i, each in numbered]

    @cached_property
    def _rules(self) -> SampleRules:
        return SampleRules(self._task, tuple(self.tools), self.submit, self.reward_part)

    @cached_property
    def _schemas(self) -> Sequence[Mapping[str, Any]]:
        async def asked() -> Sequence[Mapping[str, Any]]:
            episode = episode_of(self._rules, self._samples[0])
            try:
                await episode.begin()
                return await episode.schemas()
            finally:
                await episode.close()

        return _alone(asked()) if self._samples else ()

    async def _opened(self, samples: Sequence[Any], split: str) -> list[Problem]:
        return [await self._problem(sample, split) for sample in samples]

    async def _problem(self, sample: Any, split: str) -> Problem:
        """The problem of a sample, whose messages are those with which the solver first asks the model."""
        episode = episode_of(self._rules, sample)
        try:
            await episode.begin()
        finally:
            await episode.close()
        messages = [{"role": each.role, "content": each.text} for each in episode.state.messages]
        return Problem(
            f"{self._task.name}-{sample.id}",
            "\n\n".join(message["content"] for message in messages),
            public={MESSAGES: messages},
            secret={SAMPLE: sample.model_dump(mode="json", fallback=str)},
            split=split,
        )


def _alone(work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine, in a loop of its own, wherever the caller runs."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()
