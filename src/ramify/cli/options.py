"""Options: the flags that commands share, and how they become a configuration."""

import argparse
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ramify.core.errors import ConfigError, nearest

if TYPE_CHECKING:
    from ramify.config.configure import Resolved

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

BUDGETS = {
    "decode_tokens": "decode",
    "new_context_tokens": "prefill_uncached",
    "calls": "engine_calls",
    "turns": "turns",
    "leaves": "leaves",
    "tool_calls": "tool_calls",
    "judge_calls": "judge_calls",
    "dollars": "dollars",
}
"""What a budget may be of -> its limit."""


_DECIMAL = re.compile(r"[0-9]*\.?[0-9]+")


def add_terminal_flags(parser: argparse.ArgumentParser) -> None:
    """Flags of every command."""
    group = parser.add_argument_group("output")
    group.add_argument("-v", "--verbose", action="count", default=0, help="a line a phase; -vv: tracebacks too")
    group.add_argument("-q", "--quiet", action="store_true", help="nothing on stderr but errors")
    group.add_argument("--no-color", action="store_true", help="plain text; NO_COLOR does the same")


def add_json_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout")


def add_run_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of a run")


def add_ray_flags(parser: argparse.ArgumentParser) -> None:
    where = "grow by Ray actors, on a cluster begun here or on the one at ADDRESS (auto: the one that runs here)"
    parser.add_argument("--ray", nargs="?", const="", metavar="ADDRESS", help=where)
    parser.add_argument("--workers", type=int, metavar="N", help="with --ray: so many actors; default: one a CPU")


@dataclass(frozen=True, slots=True)
class RayFlags:
    """Where a run is grown, if by Ray actors."""

    address: str | None = None
    """None = on a cluster that is begun for it."""
    num_workers: int | None = None
    """None = one a CPU."""


def ray_flags(options: argparse.Namespace) -> RayFlags | None:
    """None = the run grows in this process. Raises `ConfigError`."""
    if options.ray is None and options.workers is not None:
        raise ConfigError(f"--workers {options.workers}: there are workers with --ray only")
    if options.workers is not None and options.workers < 1:
        raise ConfigError(f"--workers {options.workers}: at least 1 is needed")
    return None if options.ray is None else RayFlags(options.ray or None, options.workers)


def add_config_flags(parser: argparse.ArgumentParser) -> None:
    """Flags that say what to run. None of them has a default: defaults are the configuration's."""
    group = parser.add_argument_group("configuration")
    group.add_argument("--preset", metavar="NAME", help="a published setting; `ramify presets` lists them")
    group.add_argument("--task", metavar="NAME", help="a built-in task or path/to/file.py:Class")
    group.add_argument("--data", metavar="FILE", help="questions from a file or folder; columns: [data] in TOML")
    group.add_argument("--strategy", metavar="NAME", help="a built-in strategy or path/to/file.py:Class")
    group.add_argument("--engine", metavar="NAME", help="a built-in engine or path/to/file.py:Class")
    group.add_argument("--model", metavar="NAME", help="name or folder of the engine's model")
    group.add_argument("--base-url", metavar="URL", help="the engine's server; several with commas are its replicas")
    group.add_argument("--prompts", type=int, metavar="N", help="number of problems, one tree each")
    group.add_argument("--seed", type=int, metavar="N", help="the same seed gives the same trees")
    group.add_argument("--delivery", choices=("ordered", "eager"), help="how outcomes reach the strategy")
    group.add_argument("-c", "--config", type=Path, action="append", default=[], metavar="FILE", help="a TOML file")
    group.add_argument("--set", action="append", default=[], metavar="PATH=VALUE", help="e.g. limits.decode=224")


def add_budget_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--budget",
        action="append",
        default=[],
        metavar="WHAT=N",
        help=f"most of it a question: {', '.join(BUDGETS)}; may be given again",
    )


def budgets(options: argparse.Namespace) -> dict[str, float]:
    """Dotted path of a limit -> its value. Raises `ConfigError` on what is no budget."""
    found: dict[str, float] = {}
    for text in options.budget:
        name, (amount, *more) = amounts_of(text)
        if more:
            raise ConfigError(f"--budget {text!r}: one amount is needed, as in {name}=2000")
        found[f"limits.{BUDGETS[name]}"] = amount
    return found


def amounts_of(text: str) -> tuple[str, list[float]]:
    """What `WHAT=N,N,…` bounds, and by how much: dollars by any number, all else by whole ones.

    Raises `ConfigError`.
    """
    name, _, numbers = text.partition("=")
    if name not in BUDGETS:
        raise ConfigError(f"--budget {text!r}: there is no budget {name!r}; {nearest(name, BUDGETS)}")
    parts = numbers.split(",")
    if name == "dollars":
        if not all(_DECIMAL.fullmatch(part) and float(part) for part in parts):
            raise ConfigError(f"--budget {text!r}: numbers above 0 are needed, as in dollars=0.05")
        return name, [float(part) for part in parts]
    if not all(part.isdecimal() and int(part) for part in parts):
        raise ConfigError(f"--budget {text!r}: whole numbers above 0 are needed, as in {name}=2000")
    return name, [int(part) for part in parts]


def resolved(options: argparse.Namespace, flags: Mapping[str, Any] | None = None) -> "Resolved":
    """The configuration that the flags, files and overrides of a command line come to. Raises `ConfigError`.

    `flags` are further ones, by dotted path.
    """
    from ramify.config.configure import resolve

    given = {flag: value for flag in FLAGS if (value := vars(options)[flag]) is not None}
    return resolve(
        preset=options.preset,
        folder=Path.cwd(),
        files=options.config,
        flags={**{FLAGS[flag]: value for flag, value in given.items()}, **(flags or {})},
        flag_names={FLAGS[flag]: f"--{flag.replace('_', '-')}" for flag in given},
        overrides=options.set,
    )
