# pyright: reportMissingImports=false
"""Verifiers: tasksets of verifiers as an environment (checked with verifiers 0.4.0, API `verifiers.v1`).

A taskset gives the problems, its toolsets the functions, and the rewards of its tasks the score. A turn without a call
ends the rollout, as in verifiers' chat loop. Everything of a task but its opening messages is secret: verifiers marks
nothing as an answer.

Refused by name, before a run: a package with its own `Env` (one coroutine drives the whole rollout, so it cannot be
copied), tasks that need a runtime or a user who speaks first, and toolsets that are servers elsewhere.
"""

import asyncio
import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import Any, ClassVar, Final

from ramify.core.environment import Noise, RewardRule, Takes
from ramify.core.errors import ConfigError
from ramify.core.problem import Problem
from ramify.core.tool import Branching
from ramify.environments.verifiers_episode import RolloutRules, VerifiersEpisode, opened
from ramify.environments.verifiers_hooks import check_task
from ramify.environments.verifiers_tools import ToolsetFunction, functions_of
from ramify.formats.messages import MESSAGES

INSTALL: Final = "pip install 'ramify[verifiers]'"
TASK: Final = "task"
"""Secret column with the task's data, as verifiers writes them to JSON."""


@dataclass(frozen=True, kw_only=True)
class Verifiers:
    """A taskset of verifiers, by its name or as an object."""

    takes: ClassVar[Takes] = "turns"
    noise: ClassVar[Noise] = "none"
    reward: ClassVar[RewardRule] = "last"
    needs_secret: ClassVar[bool] = True

    name: str = ""
    """Of an installed taskset: `wordle`, or `owner/name@version`, of which verifiers imports `name`. With an object:
    how the run calls it; '' = by its class."""
    taskset: Any = field(default=None, repr=False)
    """A `Taskset`, instead of an installed one."""
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Fields of the configuration of an installed taskset."""
    max_turns: int | None = None
    """Most turns of a rollout, as in verifiers' `AgentConfig`; None = no limit."""
    branching: Branching = "fork"
    """fork: State and toolsets are copied. replay: for toolsets that hold what cannot be copied."""

    def __post_init__(self) -> None:
        if self.taskset is None and not self.name:
            raise ConfigError("environment 'verifiers' needs a taskset: name = 'wordle', or taskset = an object")
        if self.taskset is not None:
            if self.options:
                raise ConfigError("environment 'verifiers': options are for a taskset by name; configure the object")
            object.__setattr__(self, "name", self.name or type(self.taskset).__name__)
        if self.max_turns is not None and self.max_turns < 1:
            raise ConfigError(f"environment 'verifiers': max_turns = {self.max_turns!r}; it is at least 1")

    @property
    def schemas(self) -> Sequence[Mapping[str, Any]]:
        return [function.schema for function in self._functions.values()]

    def problems(self, split: str, num_problems: int, seed: int) -> Sequence[Problem]:
        """The first tasks of the taskset, in its order. verifiers has no splits: make an environment for each. `seed`
        is not used."""
        tasks = list(islice(self._loaded, num_problems))
        if len(tasks) < num_problems:
            raise ConfigError(
                f"the taskset {self.name!r} has {len(tasks)} tasks; ask for at most as many, not {num_problems}"
            )
        return [self._problem(task, split) for task in tasks]

    async def open(self, problem: Problem, seed: int) -> VerifiersEpisode:
        rules = RolloutRules(self._functions, await self._shared.ready(), self.max_turns)
        task = self._task(problem)
        return await opened(rules, task, _prompt(task.data))

    def check_start(self) -> None:
        """Raises `ConfigError` for a taskset that cannot be used in a tree."""
        verifiers_v1()
        self._check_env()
        task = next(iter(self._loaded), None)
        if task is None:
            raise ConfigError(f"the taskset {self.name!r} has no task; see its load()")
        check_task(task)

    async def let_go(self) -> None:
        """Close the toolsets that all rollouts share."""
        await self._shared.close()

    @cached_property
    def _loaded(self) -> Any:
        """The taskset."""
        verifiers_v1()
        if self.taskset is not None:
            return self.taskset
        from verifiers.v1.utils.loaders import load_taskset, taskset_config_type

        try:
            config = taskset_config_type(self.name).model_validate({**self.options, "id": self.name})
            return load_taskset(config)
        except (AttributeError, ImportError, TypeError, ValueError) as error:
            raise ConfigError(
                f"verifiers cannot load the taskset {self.name!r}; install its package: {error}"
            ) from error

    @cached_property
    def _functions(self) -> Mapping[str, ToolsetFunction]:
        task_type, config = type(self._loaded).task_type(), self._loaded.config
        return functions_of([*task_type.toolsets(config.task), *type(self._loaded).toolsets(config)])

    @cached_property
    def _shared(self) -> "SharedToolsets":
        return SharedToolsets(type(self._loaded).toolsets(self._loaded.config))

    def _check_env(self) -> None:
        from verifiers.v1 import SingleAgentEnv
        from verifiers.v1.utils.loaders import environment_class

        env = environment_class(self._loaded.config.id)
        if env is not SingleAgentEnv:
            raise ConfigError(
                f"the taskset {self.name!r} has its own environment {env.__name__}; its run() is one coroutine, which "
                "can be neither copied nor replayed here"
            )

    def _problem(self, task: Any, split: str) -> Problem:
        prompt = _prompt(task.data)
        if not any(message.role == "user" for message in prompt):
            raise ConfigError(f"task {task.data.idx} of {self.name!r} needs a prompt: nobody else can speak first")
        system = [task.data.system_prompt] if task.data.system_prompt else []
        return Problem(
            f"{self.name}-{task.data.idx}",
            "\n\n".join([*system, task.data.prompt_text]),
            public={MESSAGES: [message.model_dump(mode="json", exclude_none=True) for message in prompt]},
            secret={TASK: task.data.model_dump(mode="json")},
            split=split,
        )

    def _task(self, problem: Problem) -> Any:
        """The task of a problem, made from its data as verifiers' servers make it."""
        task_type = type(self._loaded).task_type()
        data = task_type.data_type().model_validate(problem.secret[TASK])
        return task_type(data, copy.deepcopy(self._loaded.config.task))


class SharedToolsets:
    """Toolsets of a taskset: one instance each for all rollouts, as in verifiers. They keep no state of a rollout."""

    def __init__(self, toolsets: Sequence[Any]) -> None:
        self._toolsets = toolsets
        self._is_ready = False
        self._lock = asyncio.Lock()

    async def ready(self) -> Sequence[Any]:
        """The toolsets, set up once."""
        async with self._lock:
            if not self._is_ready:
                for toolset in self._toolsets:
                    await toolset.setup()
                self._is_ready = True
        return self._toolsets

    async def close(self) -> None:
        for toolset in self._toolsets:
            await toolset._exit_stack.aclose()
        self._is_ready, self._lock = False, asyncio.Lock()


def verifiers_v1() -> None:
    """Import what is used of verifiers. Raises `ConfigError` if it is missing, or of a version that is not known."""
    try:
        import verifiers.v1  # noqa: F401
        from verifiers.v1.mcp.server import _call_state  # noqa: F401
    except ImportError as error:
        raise ConfigError(f"environment 'verifiers' needs verifiers 0.4.0 ({INSTALL}): {error}") from error


def _prompt(data: Any) -> list[Any]:
    """The opening messages of a task, the system's first."""
    from verifiers.v1 import SystemMessage, UserMessage

    own = [UserMessage(content=data.prompt)] if isinstance(data.prompt, str) else list(data.prompt or ())
    return [*([SystemMessage(content=data.system_prompt)] if data.system_prompt else []), *own]
