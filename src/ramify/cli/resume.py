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
    from ramify.runner import api
    from ramify.runner.configure import from_toml
    from ramify.runner.store import load

    saved = load(options.run)
    config = from_toml(saved.config, source=str(options.run / saved.config_name))
    if saved.torn is not None:
        terminal.say(f"the last record was not written whole and is cut off: {saved.torn}")
    return run_shown(
        lambda observer: api.resume(options.run, observers=[observer]),
        options.run,
        terminal,
        title="resume",
        num_trees=config.prompts,
        is_json=options.json,
    )
