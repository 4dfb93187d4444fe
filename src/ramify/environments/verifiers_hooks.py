# pyright: reportMissingImports=false
"""Verifiers hooks: the functions of a verifiers task that a rollout calls, and which of them a tree cannot call.

Source: verifiers 0.4.0, verifiers/v1/task.py and verifiers/v1/session.py.
"""

import inspect
import traceback
from typing import Any

from ramify.core.errors import ConfigError


def is_overridden(task: Any, hook: str) -> bool:
    """Whether a task has its own `hook`; verifiers' own hooks do nothing."""
    from verifiers.v1 import Task

    return getattr(type(task), hook) is not getattr(Task, hook)


def check_task(task: Any) -> None:
    """Raises `ConfigError` that names what a task needs and an episode does not have."""
    from verifiers.v1 import Trace
    from verifiers.v1.session import hook_boundary
    from verifiers.v1.utils.decorators import discover_decorated

    name = type(task).__name__
    hooks = [getattr(task, hook) for hook in ("setup", "finalize") if is_overridden(task, hook)]
    scorers = [*task.hooks("reward"), *task.hooks("metric"), *(judge.score for judge in task.plugged_judges())]
    needy = [each.__qualname__ for each in (*hooks, *scorers) if _needs_runtime(each)]
    if needy or task.NEEDS_CONTAINER:
        raise ConfigError(
            f"the task {name} needs a runtime ({', '.join(needy) or 'NEEDS_CONTAINER'}), and a tree has none; remove "
            "the argument where it is not used. verifiers itself leaves such rewards out, without an error"
        )
    if found := discover_decorated(task, "intercept"):
        raise ConfigError(
            f"the task {name} has @vf.intercept ({found[0].__name__}); remove it to use the task in a tree"
        )
    if wrong := [stop.__name__ for stop in task.hooks("stop") if hook_boundary(stop, allow_trace=True) is not Trace]:
        raise ConfigError(
            f"@vf.stop {wrong[0]!r} of the task {name} reads a Request or a Response; only Trace is known"
        )


def _needs_runtime(hook: Any) -> bool:
    parameter = inspect.signature(hook).parameters.get("runtime")
    return parameter is not None and parameter.default is inspect.Parameter.empty


def arguments_of(hook: Any, trace: Any) -> dict[str, Any]:
    """The arguments that a hook with a Trace asks for: by the name `trace`, or by the annotation."""
    names = [name for name in inspect.signature(hook).parameters if name not in ("runtime", "task")]
    return dict.fromkeys(names[:1], trace)


def fault_of(task: Any, error: BaseException) -> str:
    """The words of what was raised, with the name of the hook that raised it."""
    cause = error.__cause__ or error
    names = {each.__name__ for kind in ("reward", "metric") for each in task.hooks(kind)} | {"finalize"}
    frames = [frame.f_code.co_name for frame, _ in traceback.walk_tb(cause.__traceback__)]
    where = next((name for name in frames if name in names), "score")
    return f"{where!r} of the task {type(task).__name__} raised {type(cause).__name__}: {cause}"
