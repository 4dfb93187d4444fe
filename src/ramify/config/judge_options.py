"""Judge options: finds what an entry of `judges` names, and checks it before anything is made.

An entry names a class, whose keywords are the options; a function, which the judge `function` calls; or a finished
judge, which takes no options. The run sets `name` and `format`.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from ramify import plugins
from ramify.config.decode import ConfigFault
from ramify.config.run_config import JudgeConfig
from ramify.config.tool_options import plain_faults
from ramify.core.errors import ConfigError
from ramify.judges.function import FunctionJudge

FUNCTION: Final = "function"
GIVEN: Final = frozenset({"name", "format"})
"""Keywords that a configuration may not set."""


@dataclass(frozen=True, slots=True)
class FoundJudge:
    """What an entry names."""

    target: Callable[..., Any]
    """Makes the judge."""
    options: Mapping[str, Any]
    given: Mapping[str, Any]
    """Keyword arguments found for some of the options."""


def found_judge(name: str, entry: JudgeConfig) -> FoundJudge:
    """What the entry names. Raises `ConfigError` if it is not found."""
    kind, options = entry.kind or name, dict(entry.options)
    found = plugins.find("judge", kind)
    if found is FunctionJudge:
        function = options.pop(FUNCTION, None)
        if not isinstance(function, str):
            raise ConfigError(f"judge {name!r} needs the option function = 'path/to/file.py:name', got {function!r}")
        return FoundJudge(FunctionJudge, options, {FUNCTION: plugins.find("judge", function)})
    if inspect.isfunction(found):
        return FoundJudge(FunctionJudge, options, {FUNCTION: found})
    if not inspect.isclass(found) and options:
        raise ConfigError(f"judge {kind!r} is made already and takes no options, got {sorted(options)}")
    return FoundJudge(found if inspect.isclass(found) else lambda: found, options, {})


def judge_faults(name: str, entry: JudgeConfig) -> list[ConfigFault]:
    """Faults of the entry `judges.NAME`."""
    path = f"judges.{name}"
    try:
        found = found_judge(name, entry)
    except ConfigError as error:
        return [ConfigFault(f"{path}.kind" if entry.kind else path, str(error))]
    unknown = plugins.unknown_keywords(found.target, found.options)
    unknown |= dict.fromkeys(GIVEN & set(found.options), "it is given by the run")
    missing = plugins.missing_keywords(found.target, {*found.options, *found.given, *GIVEN})
    faults = [ConfigFault(f"{path}.options.{key}", message) for key, message in unknown.items()]
    faults += [ConfigFault(f"{path}.options", f"it needs {key!r}") for key in missing]
    return faults or plain_faults(found.target, found.options, path=f"{path}.options")


def anchored_judge(name: str, entry: JudgeConfig) -> JudgeConfig:
    """The entry with absolute paths for the files that it names."""
    options = dict(entry.options)
    if isinstance(function := options.get(FUNCTION), str):
        options[FUNCTION] = plugins.anchored(function)
    return JudgeConfig(kind=entry.kind and plugins.anchored(entry.kind), options=options)
