"""Options: the flags that commands share, and how they become a configuration."""

import argparse
import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_origin, get_type_hints

from ramify.cli.help_text import ENGINE, OUTPUT, WHAT, flag_group
from ramify.core.budgets import BUDGETS
from ramify.core.errors import ConfigError, nearest

if TYPE_CHECKING:
    from ramify.config.configure import Resolved
    from ramify.runner.saved import Saved

FLAGS = {
    "task": "task.name",
    "strategy": "strategy.name",
    "engine": "engine.name",
    "model": "engine.model",
    "base_url": "engine.base_url",
    "data": "data.path",
    "delivery": "delivery",
    "prompts": "prompts",
    "seed": "seed",
}
"""Flag -> dotted path of the configuration."""

_DECIMAL = re.compile(r"[0-9]*\.?[0-9]+")


def add_terminal_flags(parser: argparse.ArgumentParser) -> None:
    """Flags of every command."""
    group = flag_group(parser, OUTPUT)
    group.add_argument(
        "-v", "--verbose", action="count", default=0, help="print a line for each phase; -vv: tracebacks too"
    )
    group.add_argument("-q", "--quiet", action="store_true", help="print only errors on stderr")
    group.add_argument("--no-color", action="store_true", help="print plain text, as with NO_COLOR set")


def add_json_flag(parser: argparse.ArgumentParser) -> None:
    flag_group(parser, OUTPUT).add_argument("--json", action="store_true", help="print one JSON object on stdout")


def add_run_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of a run")


def add_look_flags(parser: argparse.ArgumentParser) -> None:
    """Flags of the commands that read a run."""
    add_run_argument(parser)
    parser.add_argument("--trust", action="store_true", help="load the plug-ins that the run names: their code runs")


def saved_run(options: argparse.Namespace) -> "Saved":
    """The run of a command that reads one."""
    from ramify.runner.saved import Saved

    return Saved.trusted(options.run) if options.trust else Saved.open(options.run)


def add_ray_flags(parser: argparse.ArgumentParser) -> None:
    where = "grow with Ray actors, on a new local cluster or on the one at ADDRESS (auto: the one that runs here)"
    group = flag_group(parser, "workers")
    group.add_argument("--ray", nargs="?", const="", metavar="ADDRESS", help=where)
    group.add_argument("--workers", type=int, metavar="N", help="with --ray: number of actors (default: one per CPU)")


def add_track_flag(parser: argparse.ArgumentParser) -> None:
    from ramify.config.tracker_config import KINDS

    where = f"give the metrics of each finished tree to a tracker: {', '.join(KINDS)}; may be repeated"
    flag_group(parser, OUTPUT).add_argument(
        "--track", action="append", default=[], choices=KINDS, metavar="KIND", help=where
    )


@dataclass(frozen=True, slots=True)
class RayFlags:
    """The Ray cluster and the number of actors that grow a run."""

    address: str | None = None
    """None = a new local cluster."""
    num_workers: int | None = None
    """None = one per CPU."""


def ray_flags(options: argparse.Namespace) -> RayFlags | None:
    """None = the run grows in this process. Raises `ConfigError`."""
    if options.ray is None and options.workers is not None:
        raise ConfigError(f"--workers {options.workers}: only a run with --ray has workers; add --ray")
    if options.workers is not None and options.workers < 1:
        raise ConfigError(f"--workers {options.workers}: at least 1 is needed")
    return None if options.ray is None else RayFlags(options.ray or None, options.workers)


def add_config_flags(parser: argparse.ArgumentParser, *, num_prompts: int = 8) -> None:
    """Flags that say what to run. None has a default here: the configuration has the defaults, which the texts name.

    `num_prompts`: the default that the text of --prompts names.
    """
    group = flag_group(parser, WHAT, description="the defaults hold if neither a preset nor a file says otherwise")
    group.add_argument("--preset", metavar="NAME", help="a published setting; `ramify presets` lists them")
    group.add_argument("--data", metavar="FILE", help="file or folder with questions; [data] in TOML names its columns")
    strategy = "a built-in strategy or path/to/file.py:Class (default: chains)"
    group.add_argument("--strategy", metavar="NAME", help=strategy)
    prompts = f"number of problems; each gets one tree (default: {num_prompts}, or all of --data)"
    group.add_argument("--prompts", "--problems", type=int, metavar="N", help=prompts)
    delivery = "tell outcomes as asked, so equal seeds give equal trees, or as they come (default: ordered)"
    group.add_argument("--delivery", choices=("ordered", "eager"), help=delivery)
    add_engine_flags(parser)


def add_engine_flags(parser: argparse.ArgumentParser) -> None:
    """Flags that every command that grows trees has: what samples, and any other setting."""
    group = flag_group(parser, WHAT)
    task = "a built-in task or path/to/file.py:Class (default: countdown, or data with --data)"
    group.add_argument("--task", metavar="NAME", help=task)
    env = "an environment: KIND, KIND:WHAT as in gym:FrozenLake-v1, or path/to/file.py:Class; it gives the problems"
    group.add_argument("--env", metavar="NAME", help=env)
    seed = "seed of the run; the same seed gives the same trees (default: 0)"
    group.add_argument("--seed", type=int, metavar="N", help=seed)
    add_file_flag(parser)
    group.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="PATH=VALUE",
        help="one setting, e.g. limits.decode=224; may be repeated",
    )
    add_model_flags(parser)


def add_model_flags(parser: argparse.ArgumentParser) -> None:
    """Flags of what samples."""
    group = flag_group(parser, ENGINE)
    group.add_argument("--engine", metavar="NAME", help="a built-in engine or path/to/file.py:Class (default: builtin)")
    group.add_argument(
        "--model", metavar="NAME", help="name or folder of the engine's model (default: the engine's own)"
    )
    group.add_argument(
        "--base-url", metavar="URL", help="URL of the engine's server; several, with commas, are replicas"
    )


def add_file_flag(parser: argparse.ArgumentParser) -> None:
    group = flag_group(parser, WHAT)
    group.add_argument("-c", "--config", type=Path, action="append", default=[], metavar="FILE", help="a TOML file")


def add_out_flag(parser: argparse.ArgumentParser, *, runs: str = "the run") -> None:
    """The flag of the commands that write a run folder."""
    text = f"new folder of {runs} (default: a new one in runs/)"
    flag_group(parser, OUTPUT).add_argument("--out", type=Path, metavar="DIR", help=text)


def add_budget_flag(parser: argparse.ArgumentParser) -> None:
    flag_group(parser, WHAT).add_argument(
        "--budget",
        action="append",
        default=[],
        metavar="WHAT=N",
        help=f"limit for each question, of {', '.join(BUDGETS)}; may be repeated",
    )


def budgets(options: argparse.Namespace) -> dict[str, float]:
    """Dotted path of a limit -> its value. Raises `ConfigError`."""
    found: dict[str, float] = {}
    for text in options.budget:
        name, (amount, *more) = amounts_of(text)
        if more:
            raise ConfigError(f"--budget {text!r}: give one amount, e.g. {name}=2000")
        found[f"limits.{BUDGETS[name]}"] = amount
    return found


def amounts_of(text: str) -> tuple[str, list[float]]:
    """Name and amounts of the budget `WHAT=N,N,…`: any number of dollars, whole numbers of everything else.

    Raises `ConfigError`.
    """
    name, _, numbers = text.partition("=")
    if name not in BUDGETS:
        raise ConfigError(f"--budget {text!r}: unknown budget {name!r}; {nearest(name, BUDGETS)}")
    parts = numbers.split(",")
    if name == "dollars":
        if not all(_DECIMAL.fullmatch(part) and float(part) for part in parts):
            raise ConfigError(f"--budget {text!r}: give numbers above 0, e.g. dollars=0.05")
        return name, [float(part) for part in parts]
    if not all(part.isdecimal() and int(part) for part in parts):
        raise ConfigError(f"--budget {text!r}: give whole numbers above 0, e.g. {name}=2000")
    return name, [int(part) for part in parts]


def resolved(options: argparse.Namespace, flags: Mapping[str, Any] | None = None) -> "Resolved":
    """The configuration of a command line: its flags, files and overrides. Raises `ConfigError`.

    `flags` are further ones, by dotted path.
    """
    return resolved_preset(options, options.preset, flags)


def resolved_preset(
    options: argparse.Namespace, preset: str | None, flags: Mapping[str, Any] | None = None
) -> "Resolved":
    """`resolved`, with another preset than the command line's."""
    from ramify.config.configure import resolve

    return resolve(
        preset=preset,
        folder=Path.cwd(),
        files=options.config,
        flags={**settings_of_flags(options), **(flags or {})},
        flag_names={path: f"--{flag.replace('_', '-')}" for flag, path in FLAGS.items()},
        overrides=options.set,
    )


def settings_of_flags(options: argparse.Namespace) -> dict[str, Any]:
    """The settings that flags of `FLAGS` and `--env` give, by dotted path. Raises `ConfigError`."""
    found = {path: value for flag, path in FLAGS.items() if (value := vars(options).get(flag)) is not None}
    return found | environment_settings(vars(options).get("env"))


def environment_settings(text: str | None) -> dict[str, Any]:
    """The settings of `--env NAME`. `KIND:REST` names a built-in kind, and REST is the option that it needs, or else
    its first one: `gym:FrozenLake-v1` is the kind `gym` with `id = "FrozenLake-v1"`. Raises `ConfigError`."""
    from ramify import plugins

    if text is None:
        return {}
    kind, colon, rest = text.partition(":")
    if not colon or not plugins.is_built_in("environment", kind):
        return {"environment.name": text}
    found = plugins.find("environment", kind)
    option = _first_option(found)
    if option is None or not rest:
        raise ConfigError(f"--env {text!r}: write --env {kind}, or {kind}:WHAT if the environment takes an option")
    is_list = get_origin(get_type_hints(found).get(option)) is Sequence
    value = [rest] if is_list else int(rest) if rest.isdecimal() else rest
    return {"environment.name": kind, f"environment.options.{option}": value}


def _first_option(environment: type) -> str | None:
    """The option that a class of environments needs, or else the first that it declares itself; None = it has none."""
    parameters = inspect.signature(environment).parameters
    needed = (name for name, each in parameters.items() if each.default is each.empty)
    inherited = {name for base in environment.__mro__[1:] for name in inspect.get_annotations(base)}
    own = (name for name in inspect.get_annotations(environment) if name in parameters and name not in inherited)
    return next(needed, None) or next(own, None)
