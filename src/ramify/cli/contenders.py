"""Contenders: the presets and configuration files that a command compares, each with settings of its own."""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ramify.cli.help_text import WHAT, flag_group
from ramify.cli.options import add_file_flag, add_model_flags
from ramify.core.errors import ConfigError, nearest

if TYPE_CHECKING:
    from ramify.config.run_config import RunConfig
    from ramify.core.problem import Problem

FILE: Final = ".toml"
"""Ending of a contender that is a configuration file, such as `ramify plan --out` writes."""


def add_contender_flags(parser: argparse.ArgumentParser, *, num_problems: int, num_seeds: int, about: str = "") -> None:
    """Flags that say what is compared, on how many problems and seeds; the numbers are their defaults."""
    presets = f"presets or configuration files (*{FILE}); `ramify presets` lists presets{about}"
    group = flag_group(parser, WHAT)
    group.add_argument("--presets", required=True, metavar="A,B,…", help=presets)
    setting = "a setting of all runs, or of one preset's"
    group.add_argument("--set", action="append", default=[], metavar="[PRESET:]PATH=VALUE", help=setting)
    problems = f"number of held-out problems (default: {num_problems})"
    group.add_argument("--problems", "--prompts", type=int, metavar="N", help=problems)
    seeds = "trees of each problem and preset"
    group.add_argument("--seeds", type=int, default=num_seeds, metavar="N", help=seeds)
    seed = "selects the problems, and is the first seed (default: 0)"
    group.add_argument("--seed", type=int, metavar="N", help=seed)


def add_sampling_flags(parser: argparse.ArgumentParser) -> None:
    """Flags of the engine of all contenders, and of files with their settings."""
    add_file_flag(parser)
    add_model_flags(parser)


def contender_names(text: str) -> list[str]:
    """The contenders in the text of `--presets`. Raises `ConfigError` if there is none, or one twice."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise ConfigError("--presets: name at least one preset; `ramify presets` lists them")
    if len(set(names)) < len(names):
        raise ConfigError(f"--presets {text}: a preset is named twice; name each once")
    return names


def contender_config(
    name: str,
    names: Sequence[str],
    *,
    flags: Mapping[str, Any],
    given: Sequence[str],
    folder: Path | None = None,
    files: Sequence[Path] = (),
) -> "RunConfig":
    """The configuration of `name`, one of `names`. `given`: the texts of `--set`; `folder`: that of `ramify.toml`, None
    = it is not read; `files`: those of `-c`.

    Raises `ConfigError`, also if one of these files names the strategy, which would then be that of every preset.
    """
    from ramify.config.configure import resolve
    from ramify.config.layers import FILE_NAME

    settings = settings_of(name, names, given)
    if name.endswith(FILE):
        return resolve(folder=folder, files=[*files, Path(name)], flags=flags, overrides=settings).config
    found = resolve(preset=name, folder=folder, files=files, flags=flags, overrides=settings)
    source = found.sources.get("strategy.name", "")
    if source in map(str, files):
        raise ConfigError(
            f"-c {source}: it names the strategy {found.config.strategy.name!r}, which would replace that of {name}; "
            f"name the file in --presets, or leave out its [strategy]"
        )
    if folder is not None and source == str(folder / FILE_NAME):
        raise ConfigError(
            f"{source}: it names the strategy {found.config.strategy.name!r}, which would replace that of {name}; move "
            "its [strategy] into a file of its own, which other commands take by -c and this one in --presets"
        )
    return found.config


def settings_of(name: str, names: Sequence[str], given: Sequence[str]) -> list[str]:
    """The settings of all contenders and of `name` alone. Raises `ConfigError` for a setting of none of `names`."""
    found: list[str] = []
    for text in given:
        owner, colon, setting = text.partition(":")
        if not colon or "=" in owner:
            found.append(text)
        elif owner not in names:
            raise ConfigError(f"--set {text!r}: --presets does not name {owner!r}; {nearest(owner, names)}")
        elif owner == name:
            found.append(setting)
    return found


def check_contenders(configs: "Mapping[str, RunConfig]", problems: "Sequence[Problem]") -> None:
    """Check all contenders before the first tree of any: their settings, engines and tools, and that a judge rates
    their leaves. Raises `ConfigError` and what engines and tools raise."""
    from ramify.runner import library

    for name, config in configs.items():
        if not library.check_start(config, problems).judging.leaf:
            raise ConfigError(f"{name}: no judge rates its leaves, so nothing can be said of it; add one (judges)")


def settle_numbers(
    options: argparse.Namespace, *, num_problems: int, folder: Path | None = None, files: Sequence[Path] = ()
) -> None:
    """Set the number of problems and the seed that no flag gives: to those of the files, else to `num_problems` and 0.
    Mutates `options`. Raises `ConfigError`, also for a number of problems or seeds below 1."""
    from ramify.config.layers import file_layers, merged

    values, sources = merged(file_layers(folder, files, []))  # Whoever resolves the configuration says what is unread.
    for flag, key, default, least in (("problems", "prompts", num_problems, 1), ("seed", "seed", 0, 0)):
        if vars(options)[flag] is None:
            number = values.get(key, default)
            if type(number) is not int or number < least:
                raise ConfigError(f"{sources[key]}: {key} = {number!r}: a whole number of at least {least} is needed")
            vars(options)[flag] = number
    for flag in ("problems", "seeds"):
        if vars(options)[flag] < 1:
            raise ConfigError(f"--{flag} {vars(options)[flag]!r}: at least 1 is needed")
