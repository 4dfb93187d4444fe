# pyright: reportMissingImports=false
"""tau2: the domains of tau2-bench as an environment (checked with tau2 1.0.1, which is installed from its source).

A task gives the problem, its domain the policy and the functions, and tau2's evaluator the score. The agent is the
model of the run. The customer is a model of the run too, asked by the action `user` with tau2's own guidelines and the
task's scenario. The agent speaks first: its first turn takes the place of tau2's fixed greeting.

Refused by name: tasks whose reward needs a judge model, and tasks in which somebody else must speak first.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Final, Literal

from ramify.core.environment import Noise, RewardRule, Takes
from ramify.core.errors import ConfigError, nearest
from ramify.core.problem import Problem
from ramify.core.tool import Branching
from ramify.edge.error_text import error_text
from ramify.environments.tau2_dialogue import opening_words
from ramify.environments.tau2_episode import Tau2Episode, in_thread, opened, scene_of, seed_ids
from ramify.formats.messages import MESSAGES

INSTALL: Final = "with Python 3.12, pip install a checkout of https://github.com/sierra-research/tau2-bench"
DATA: Final = "set TAU2_DATA_DIR to the folder `data` of the checkout"
TASK: Final = "task"
"""Secret column with the task, as tau2 writes it to JSON."""
SPLITS: Final = {"train": "train", "heldout": "test"}
"""Split of a run -> split of tau2."""


@dataclass(frozen=True, kw_only=True)
class Tau2:
    """A domain of tau2-bench."""

    name: ClassVar[str] = "tau2"
    action: ClassVar[str] = "user"
    takes: ClassVar[Takes] = "turns"
    noise: ClassVar[Noise] = "none"
    reward: ClassVar[RewardRule] = "last"
    needs_secret: ClassVar[bool] = True

    domain: str
    """`airline`, `mock`, `retail`, `telecom` or another domain of tau2."""
    split: str = ""
    """Split of tau2, such as `base`; '' = `train` for the run's split `train`, and `test` for `heldout`. A domain
    without splits gives all its tasks."""
    tasks: Sequence[str] = ()
    """Ids of the tasks, in order; empty = all of the split."""
    judged: Literal["refuse", "skip"] = "refuse"
    """What happens to tasks whose reward needs a judge model (`nl_assertions`), which a run cannot give them."""
    max_steps: int = 200
    """Messages after which a path is truncated (tau2's default). A call and its result are two."""
    max_errors: int = 10
    """Failed calls after which a path is truncated (tau2's default)."""
    retrieval: str = ""
    """How `banking_knowledge` searches its documents, such as `bm25`; '' = tau2's default, which asks OpenAI."""
    branching: Branching = "fork"
    """fork: the databases are copied. replay: for a domain that holds what cannot be copied."""

    def __post_init__(self) -> None:
        if not self.domain:
            raise ConfigError("environment 'tau2' needs a domain: --env tau2:mock, or domain = 'mock'")
        if self.judged not in ("refuse", "skip"):
            raise ConfigError(f"environment 'tau2': judged = {self.judged!r}; it is 'refuse' or 'skip'")
        for name, value in (("max_steps", self.max_steps), ("max_errors", self.max_errors)):
            if value < 1:
                raise ConfigError(f"environment 'tau2': {name} = {value!r}; it is at least 1")

    @cached_property
    def schemas(self) -> Sequence[Mapping[str, Any]]:
        return [tool.openai_schema["function"] for tool in self._world.get_tools()]

    def problems(self, split: str, num_problems: int, seed: int) -> Sequence[Problem]:
        """The first tasks of the split, in tau2's order. `seed` is not used."""
        tasks = self._tasks(self.split or SPLITS.get(split, split))
        needy = [task.id for task in tasks if needs_judge(task)]
        if self.judged == "skip":
            tasks = [task for task in tasks if task.id not in needy]
        if len(tasks) < num_problems:
            left_out = f" without the {len(needy)} that need a judge model" if needy and self.judged == "skip" else ""
            raise ConfigError(
                f"tau2's domain {self.domain!r} has {len(tasks)} tasks{left_out}; ask for at most as many, not "
                f"{num_problems}"
            )
        if refused := [task.id for task in tasks[:num_problems] if task.id in needy]:
            raise ConfigError(
                f"tasks {', '.join(refused)} of tau2's domain {self.domain!r} are scored by a judge model "
                "(nl_assertions), and a score without it would be wrong; set environment.options.judged = 'skip' to "
                "leave such tasks out"
            )
        return [self._problem(task, split) for task in tasks[:num_problems]]

    async def open(self, problem: Problem, seed: int) -> Tau2Episode:
        return await in_thread(self._opened, problem)

    def check_start(self) -> None:
        """Raises `ConfigError` if tau2, the domain or its data is missing."""
        _ = self.schemas

    @cached_property
    def _registry(self) -> Any:
        """tau2's registry of domains."""
        registry = tau2_registry()
        if self.domain not in registry.get_domains():
            raise ConfigError(f"tau2 has no domain {self.domain!r}; {nearest(self.domain, registry.get_domains())}")
        return registry

    @cached_property
    def _world(self) -> Any:
        """A world of the domain, which nobody acts in."""
        return self._built(self._kwargs(self._tasks(None)[0]))

    def _tasks(self, split: str | None) -> Sequence[Any]:
        """The tasks of a split, or all; those that `tasks` names."""
        registry = self._registry
        loader = registry.get_task_splits_loader(self.domain)
        try:
            splits = loader() if loader is not None else {}
            if split is not None and splits and split not in splits:
                raise ConfigError(
                    f"the domain {self.domain!r} of tau2 has no split {split!r}; {nearest(split, splits)}"
                )
            found = registry.get_tasks_loader(self.domain)(split if splits else None)
        except (KeyError, OSError) as error:
            raise ConfigError(f"tau2 cannot read the tasks of {self.domain!r} ({error}); {DATA}") from error
        if not found:
            raise ConfigError(f"tau2 found no task of {self.domain!r} (split {split!r}); {DATA}")
        known = {task.id: task for task in found}
        for task in map(str, self.tasks):
            if task not in known:
                raise ConfigError(f"tau2's domain {self.domain!r} has no task {task!r}; {nearest(task, known)}")
        return [known[str(task)] for task in self.tasks] or found

    def _kwargs(self, task: Any) -> dict[str, Any]:
        """What the domain's constructor gets for a task."""
        from tau2.data_model.simulation import TextRunConfig
        from tau2.runner.build import _build_env_kwargs

        return _build_env_kwargs(TextRunConfig(domain=self.domain, retrieval_config=self.retrieval or None), task)

    def _built(self, kwargs: Mapping[str, Any]) -> Any:
        """A tau2 Environment. Boundary to a domain's code and data."""
        try:
            return self._registry.get_env_constructor(self.domain)(**kwargs)
        except Exception as error:
            hint = DATA if isinstance(error, OSError) else "see docs/guides/env-tau2.md for what each domain needs"
            raise ConfigError(f"tau2 cannot open the domain {self.domain!r} ({error_text(error)}); {hint}") from error

    def _problem(self, task: Any, split: str) -> Problem:
        from tau2.agent.llm_agent import LLMAgent

        kwargs = self._kwargs(task)
        policy = (self._built(kwargs) if kwargs else self._world).get_policy()
        system = LLMAgent(tools=[], domain_policy=policy, llm="").system_prompt
        history = task.initial_state.message_history if task.initial_state is not None else None
        words = opening_words(history or ())
        messages = [{"role": "system", "content": system}, {"role": "user", "content": words}]
        secret = {TASK: task.model_dump(mode="json")}
        return Problem(
            f"tau2-{self.domain}-{task.id}", f"{system}\n\n{words}", {MESSAGES: messages}, secret, split=split
        )

    def _opened(self, problem: Problem) -> Tau2Episode:
        from tau2.data_model.tasks import Task

        task = Task.model_validate(problem.secret[TASK])
        kwargs = self._kwargs(task)
        environment = self._built(kwargs)
        scene = scene_of(task, environment, kwargs=kwargs, functions=self.schemas)
        limits = {"max_steps": self.max_steps, "max_errors": self.max_errors}
        return opened(self.domain, task, environment, scene=scene, limits=limits)


def needs_judge(task: Any) -> bool:
    """Whether tau2 asks a judge model for the reward of a task."""
    criteria = task.evaluation_criteria
    if criteria is None or not criteria.nl_assertions:
        return False
    return "NL_ASSERTION" in [kind.value for kind in criteria.reward_basis]


def tau2_registry() -> Any:
    """tau2's registry. Raises `ConfigError` if tau2 is missing. tau2 writes no log, and fetches nothing, because of
    the import."""
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    try:
        from loguru import logger

        logger.disable("tau2")
        from tau2.registry import registry
    except ImportError as error:
        raise ConfigError(
            f"environment 'tau2' needs tau2-bench 1.0.1: {INSTALL}, and {DATA}; the `tau2` of PyPI is another project "
            f"({error})"
        ) from error
    seed_ids()
    return registry
