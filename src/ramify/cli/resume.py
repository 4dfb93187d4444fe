"""`ramify resume`: go on with a run that was interrupted or killed."""

import argparse

from ramify.cli.exit_codes import ExitCode
from ramify.cli.options import add_json_flag, add_run_argument
from ramify.cli.terminal import Terminal


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run_argument(parser)
    add_json_flag(parser)


def execute(options: argparse.Namespace, terminal: Terminal) -> ExitCode:
    from ramify.cli.running import run_shown
    from ramify.config.configure import from_toml
    from ramify.runner import api
    from ramify.store.store import header_and_config

    _, config = header_and_config(options.run)
    return run_shown(
        lambda observer: api.resume(options.run, observers=[observer]),
        options.run,
        terminal,
        title="resume",
        num_trees=from_toml(config, source=str(options.run)).prompts,
        is_json=options.json,
    )
