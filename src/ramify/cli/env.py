"""`ramify env check NAME`: open an environment, play random turns, fork, replay, and print what was found."""

import argparse
import asyncio
from collections.abc import Iterator, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any

from ramify.cli.exit_codes import ExitCode
from ramify.cli.help_text import WHAT, flag_group
from ramify.cli.options import add_json_flag, environment_settings
from ramify.core.errors import ConfigError

if TYPE_CHECKING:
    from ramify.cli.terminal import Terminal
    from ramify.core.environment import Environment
    from ramify.environments.check import EnvironmentCheck, EnvironmentFinding


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", choices=("check",), help="check: try it as a tree would use it")
    parser.add_argument(
        "name", metavar="NAME", help="KIND, KIND:WHAT as in gym:FrozenLake-v1, or path/to/file.py:Class"
    )
    group = flag_group(parser, WHAT)
    group.add_argument("--turn", action="append", default=[], metavar="TEXT", help="a turn to try; may be repeated")
    group.add_argument("--turns", type=int, default=12, metavar="N", help="turns of a path")
    group.add_argument("--problems", type=int, default=2, metavar="N", help="problems to try")
    group.add_argument("--seed", type=int, default=0, metavar="N", help="seed of problems and turns")
    group.add_argument(
        "--set", action="append", default=[], metavar="OPTION=VALUE", help="an option of the environment, as in TOML"
    )
    add_json_flag(parser)


def execute(options: argparse.Namespace, terminal: "Terminal") -> ExitCode:
    from ramify.core.environment import AgentTurn
    from ramify.environments.check import EnvironmentCheck

    if min(options.turns, options.problems) < 1:
        raise ConfigError(f"--turns {options.turns}, --problems {options.problems}: each is at least 1")
    environment = _environment(options)
    turns = [AgentTurn(text=text) for text in options.turn]
    check = EnvironmentCheck(
        environment, turns, num_turns=options.turns, num_problems=options.problems, seed=options.seed
    )
    began = perf_counter()
    found = asyncio.run(check.findings())
    seconds = perf_counter() - began
    about: dict[str, Any] = {
        "name": environment.name,
        "takes": environment.takes,
        "branching": environment.branching,
        "noise": environment.noise,
        "reward": environment.reward,
        "needs_secret": environment.needs_secret,
        "num_steps": check.num_steps,
        "num_digests": check.num_digests,
        "steps_per_s": check.num_steps / seconds,
    }
    if options.json:
        terminal.result("ramify.env/1", {**about, "findings": {each.rule: each.fault for each in found}})
    else:
        terminal.lines(_lines(environment, check, found, about["steps_per_s"]))
    return ExitCode.DONE if all(each.fault is None for each in found) else ExitCode.CHECK


def _lines(
    environment: "Environment", check: "EnvironmentCheck", found: "Sequence[EnvironmentFinding]", steps_per_s: float
) -> Iterator[str]:
    for each in found:
        yield f"{'ok   ' if each.fault is None else 'FAULT'} {each.rule}"
        if each.fault is not None:
            yield f"      {each.fault}"
    oracle = ", needs the secret: its score is an oracle" if environment.needs_secret else ""
    yield (
        f"{environment.name}: takes {environment.takes}, branching {environment.branching}, noise {environment.noise}, "
        f"reward {environment.reward}{oracle}"
    )
    yield f"{check.num_steps} steps, {steps_per_s:.0f} a second; {_digests(check)}"


def _digests(check: "EnvironmentCheck") -> str:
    if check.num_digests == check.num_steps:
        return "every state has a digest"
    return f"{check.num_steps - check.num_digests} states without a digest: equal texts do not prove equal states there"


def _environment(options: argparse.Namespace) -> "Environment":
    from ramify.config.configure import resolve
    from ramify.runner.build import build_environment

    overrides = [f"environment.options.{each}" for each in options.set]
    config = resolve(flags=environment_settings(options.name), overrides=overrides).config
    return build_environment(config.environment)
