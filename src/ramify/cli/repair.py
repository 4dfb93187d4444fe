"""`ramify repair`: keep what can be trusted of a damaged run, and say what was lost."""

import argparse
from dataclasses import asdict

from ramify.cli.exit_codes import ExitCode
from ramify.cli.options import add_json_flag, add_run_argument
from ramify.cli.terminal import Terminal


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run_argument(parser)
    add_json_flag(parser)


def execute(options: argparse.Namespace, terminal: Terminal) -> ExitCode:
    from ramify.store.repair import repair
    from ramify.store.store import JOURNAL

    repaired = repair(options.run / JOURNAL)
    if options.json:
        values = {**asdict(repaired), "backup": None if repaired.backup is None else str(repaired.backup)}
        terminal.result("ramify.repair/1", {"run": str(options.run), **values})
    else:
        terminal.out.print(str(repaired).replace("; ", "\n"), markup=False, soft_wrap=True)
    if repaired.backup is not None:
        terminal.say(f"go on with: ramify resume {options.run}")
    return ExitCode.DONE
