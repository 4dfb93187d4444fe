"""`ramify rollout`: grow a tree for every problem into a new run folder."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from ramify.cli.exit_codes import ExitCode
from ramify.cli.options import add_budget_flag, add_config_flags, add_json_flag, budgets, resolved
from ramify.cli.terminal import Terminal

if TYPE_CHECKING:
    from ramify.config.run_config import RunConfig

RUNS = Path("runs")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config_flags(parser)
    add_budget_flag(parser)
    parser.add_argument("--out", type=Path, metavar="DIR", help="a new folder for the run; default: a new one in runs/")
    parser.add_argument("--dry-run", action="store_true", help="print the whole configuration and start nothing")
    parser.add_argument("--metrics-port", type=int, metavar="N", help="serve Prometheus metrics while it runs; 0 = any")
    add_json_flag(parser)


def execute(options: argparse.Namespace, terminal: Terminal) -> ExitCode:
    from ramify.cli.running import measured, run_shown
    from ramify.runner import api

    config = resolved(options, budgets(options)).config
    if options.dry_run:
        return _dry_run(config, terminal, is_json=options.json)
    if config.strategy.reading is not None:
        terminal.say(config.strategy.reading)
    out = options.out or new_folder(config)
    title = config.preset or config.strategy.name
    with measured(options.metrics_port, terminal, agent=title) as (observers, measure):
        return run_shown(
            lambda observer: api.begin(config, out, observers=[observer, *observers], measured=measure),
            out,
            terminal,
            title=title,
            num_trees=config.prompts,
            is_json=options.json,
        )


def new_folder(config: "RunConfig") -> Path:
    """The first of runs/NAME-1, runs/NAME-2, … that is not there."""
    name = config.preset or config.strategy.name.rpartition(":")[2]
    number = 1
    while (RUNS / f"{name}-{number}").exists():
        number += 1
    return RUNS / f"{name}-{number}"


def _dry_run(config: "RunConfig", terminal: Terminal, *, is_json: bool) -> ExitCode:
    from ramify.config.configure import to_toml
    from ramify.runner.estimate import bounds

    most = bounds(config)
    if is_json:
        terminal.result("ramify.config/1", {"config": config, "at_most": most})
        return ExitCode.DONE
    terminal.out.print(to_toml(config), markup=False, soft_wrap=True)
    bound = ", ".join(f"{value} {name}" for name, value in most.items() if value is not None)
    unbound = ", ".join(name for name, value in most.items() if value is None)
    terminal.out.print(f"# at most {bound}", markup=False)
    if unbound:
        terminal.out.print(f"# nothing bounds: {unbound}", markup=False)
    return ExitCode.DONE
