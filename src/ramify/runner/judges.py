"""Judges of a run: the task's and those of its configuration, checked before the start.

Strategies ask the judges of the configuration. A judge with the name of a task's judge replaces it, also for leaves. A
judge that asks a model has an action: the one it names, or its own default if the run has no action of that name.
"""

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, Final

from ramify import plugins
from ramify.config.judge_options import found_judge, judge_faults
from ramify.config.run_config import JudgeConfig, RunConfig
from ramify.core.action import ActionConfig
from ramify.core.errors import ConfigError, nearest
from ramify.core.format import Equating, Format, IsSame
from ramify.core.judge import BranchJudge, SamplingJudge
from ramify.core.protocols import follows
from ramify.core.task import Task
from ramify.edge.error_text import error_text
from ramify.environments.score import EnvironmentScore
from ramify.formats.tags import TagFormat
from ramify.judges.agreement import Agreement
from ramify.judges.exact import Exact
from ramify.judges.math import MathJudge
from ramify.strategies.parts.steering import REWARD

Judges = Mapping[str, BranchJudge | SamplingJudge]
USER: Final = ActionConfig(role="user", edge="quotes", template="{question}")
"""How a simulated user is asked in a run that has no action for it: by the policy's engine."""
WANTED: Final = ("name", "is_oracle", "judge")


def judges_of(config: RunConfig, task: Task, format: Format) -> tuple[Judges, tuple[str, ...]]:
    """All judges by name, and the names of those that score leaves, in order. Raises `ConfigError`."""
    is_same = format.is_same_answer if isinstance(format, Equating) else None
    own = {judge.name: _reading(judge, format, is_same) for judge in task.judges}
    named = {name: _built(name, entry, format) for name, entry in config.judges.items()}
    for name, judge in named.items():
        if isinstance(judge, Agreement):
            named[name] = replace(judge, is_same=is_same or task.is_same_answer)
    for name, judge in named.items():
        if name in own and isinstance(judge, SamplingJudge):
            raise ConfigError(
                f"judges.{name} takes the place of the task's judge of leaves, and asks a model, which only a "
                "strategy's command can pay for; call it by another name"
            )
        if name == REWARD:
            raise ConfigError(f"judges.{name}: strategies mean the reward of ended paths by that name; choose another")
    return {**own, **named}, tuple(own)


def _reading(judge: BranchJudge, format: Format, is_same: IsSame | None) -> BranchJudge:
    """A judge of the task that reads answers as the run's format writes them."""
    match judge:
        case Exact():
            return replace(judge, format=format, is_same=is_same or judge.is_same)
        case MathJudge():
            return judge.reading(format)
        case _:
            return judge


def judge_actions(config: RunConfig, judges: Judges, format: Format) -> dict[str, ActionConfig]:
    """The run's actions, plus default actions for judges whose action the run lacks. Raises `ConfigError` if a judge
    names an action that is not for judges."""
    actions = dict(config.actions)
    for judge in sampling(judges).values():
        if judge.action not in actions:
            actions[judge.action] = _spoken(judge.default_action, format)
        action = actions[judge.action]
        if action.role != "judge" or action.edge != "quotes":
            raise ConfigError(
                f"judge {judge.name!r} asks by action {judge.action!r}, which has role = {action.role!r} and edge = "
                f"{action.edge!r}; a judge's has role = 'judge' and edge = 'quotes'"
            )
        judge.check(action)
    world = world_of(judges)
    if world is not None and (name := world.action) is not None:
        actions.setdefault(name, USER)
        if (actions[name].role, actions[name].edge) != ("user", "quotes"):
            raise ConfigError(
                f"the environment asks its model by action {name!r}, which has role = {actions[name].role!r} and edge "
                f"= {actions[name].edge!r}; such an action has role = 'user' and edge = 'quotes'"
            )
    return actions


def world_of(judges: Judges) -> EnvironmentScore | None:
    """The judge that scores by the states of the run's environment; None = there is no environment."""
    return next((judge for judge in judges.values() if isinstance(judge, EnvironmentScore)), None)


def sampling(judges: Judges) -> dict[str, SamplingJudge]:
    """The judges that ask a model."""
    return {name: judge for name, judge in judges.items() if follows(judge, SamplingJudge)}


def check_strategy_judges(options: Any, judges: Iterable[str], strategy: str) -> None:
    """Refuse a strategy if its option `judge`, `…_judge` or `outcome` names a judge that the run does not have."""
    known = {*judges, REWARD}
    if not is_dataclass(options):
        return
    for field in fields(options):
        is_judge = field.name in ("judge", "outcome") or field.name.endswith("_judge")
        name = getattr(options, field.name) if is_judge else None
        if isinstance(name, str) and name and name not in known:
            raise ConfigError(
                f"strategy {strategy!r}: {field.name} = {name!r}, and the run has no such judge; "
                f"{nearest(name, known)} Name one by judges.{name}.kind = ..."
            )


def _built(name: str, entry: JudgeConfig, format: Format) -> BranchJudge | SamplingJudge:
    """Boundary to a user's class: whatever its constructor raises becomes a `ConfigError` about the entry."""
    if faults := judge_faults(name, entry):
        raise ConfigError("; ".join(f"{fault.path}: {fault.message}" for fault in faults))
    found = found_judge(name, entry)
    kind = entry.kind or name
    at = "" if plugins.is_built_in("judge", kind) else f" ({plugins.place_of(kind)})"
    taken = {key: value for key, value in (("name", name), ("format", format)) if _takes(found.target, key)}
    try:
        judge = found.target(**taken, **found.given, **found.options)
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:
        raise ConfigError(
            f"judges.{name}{at} cannot be made with {dict(entry.options)!r}: {error_text(error)}"
        ) from error
    lacking = [each for each in WANTED if each not in dir(judge)]
    if lacking and not isinstance(judge, SamplingJudge):
        raise ConfigError(f"judges.{name}{at}: {type(judge).__name__} is no judge: it lacks {', '.join(lacking)}")
    if judge.name != name:
        raise ConfigError(f"judges.{name}: the judge calls itself {judge.name!r}; name the entry so")
    return judge


def _takes(target: Any, keyword: str) -> bool:
    """Whether a class takes this keyword by name."""
    parameters = inspect.signature(target).parameters.values()
    named = any(p.kind is p.VAR_KEYWORD for p in parameters)
    return not named and not plugins.unknown_keywords(target, {keyword: None})


def _spoken(action: ActionConfig, format: Format) -> ActionConfig:
    """An action whose template opens a context as tag formats do. Other formats add their own turns."""
    if not isinstance(format, TagFormat):
        return action
    start, _, end = TagFormat().template.partition("{question}")
    return replace(action, template=f"{start}{action.template}{end}")
