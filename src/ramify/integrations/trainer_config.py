"""Trainer config: combines a TOML file and what a trainer sets into one run.

The TOML wins. The trainer sets what it leaves open. A temperature that differs from the trainer's raises an error,
because the trainer computes logprobs at its own, and of the whole distribution.
"""

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from ramify.config.configure import resolve
from ramify.config.run_config import RunConfig
from ramify.core.errors import ConfigError
from ramify.core.limits import Limits
from ramify.core.task import Task
from ramify.runner.build import build_task
from ramify.tasks.data import DataFile

TEMPERATURE: Final = "actions.policy.sampling.temperature"
MAX_RESPONSE: Final = "growth.max_response_tokens"
LABEL: Final = "label"
"""Column of the gold answer, for a task of data that names none: the trainer gives it with each question."""


def said_in(path: Path) -> Mapping[str, Any]:
    """The parsed file. Raises `ConfigError` if it cannot be read."""
    try:
        return tomllib.loads(path.read_text("utf-8-sig"))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error


def said_at(said: Mapping[str, Any], path: str) -> Any:
    """The value at a dotted path of a parsed file; None = not set."""
    value: Any = said
    for key in path.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def is_chains(said: Mapping[str, Any]) -> bool:
    """Whether a parsed file leaves the strategy at chains, without a number of them."""
    is_default = "preset" not in said and said_at(said, "strategy.name") in (None, "chains")
    return is_default and said_at(said, "strategy.options.n_agent") is None


def task_of(config: RunConfig) -> Task:
    """The task of a run. The trainer gives the questions, so a task of a data file needs no file."""
    if config.task.name != "data":
        return build_task(config)
    data = replace(config.data, path=None, questions=("of the trainer",), answer=config.data.answer or LABEL)
    return DataFile(data)


def filled(
    path: Path, said: Mapping[str, Any], settings: Iterable[tuple[str, Any]], *, temperature: float | None, named: str
) -> RunConfig:
    """The run of a file, with `settings` (dotted path, value) where it says nothing. `temperature` is the trainer's,
    under the name `named`; None = not known. Raises `ConfigError`."""
    own = said_at(said, TEMPERATURE)
    if own is not None and temperature is not None and own != temperature:
        raise ConfigError(
            f"{path}: {TEMPERATURE} = {own!r}, and the trainer computes logprobs at {named} = {temperature!r}; leave "
            "the former out"
        )
    flags = {where: value for where, value in settings if said_at(said, where) is None}
    is_small = said_at(said, "engine.name") == "builtin"
    config = resolve(files=[path], flags=flags, is_small=is_small).config
    sampling = config.actions["policy"].sampling
    if sampling.top_p < 1 or sampling.top_k:
        raise ConfigError(
            f"{path}: the policy samples with top_p = {sampling.top_p!r}, top_k = {sampling.top_k!r}, and the trainer "
            "computes logprobs of the whole distribution; leave them out"
        )
    if config.run_limits != Limits():
        raise ConfigError(
            f"{path}: run_limits are of a whole run, and a trainer's has no end; set limits, which are a tree's"
        )
    return config
