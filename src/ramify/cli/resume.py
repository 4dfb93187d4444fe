"""`ramify resume`: continue a run that was interrupted or killed; with `--ray` a divided run grows with Ray actors."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from ramify.cli.exit_codes import ExitCode
from ramify.cli.options import RayFlags, add_json_flag, add_ray_flags, add_run_argument, ray_flags
from ramify.cli.terminal import Terminal
from ramify.core.errors import ConfigError

if TYPE_CHECKING:
    from ramify.cli.progress import RunProgress
    from ramify.runner.report import RunReport


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run_argument(parser)
    add_ray_flags(parser)
    add_json_flag(parser)


def execute(options: argparse.Namespace, terminal: Terminal) -> ExitCode:
    from ramify.cli.running import run_shown
    from ramify.config.configure import from_toml
    from ramify.store.layout import shard_of
    from ramify.store.rewind import finish_rewind
    from ramify.store.store import header_and_config

    where = ray_flags(options)
    finish_rewind(options.run)
    header, config = header_and_config(options.run)
    return run_shown(
        lambda progress: _grow(options.run, where, progress),
        options.run,
        terminal,
        title="resume",
        num_trees=shard_of(header).size(from_toml(config, source=str(options.run)).prompts),
        is_json=options.json,
    )


def _grow(run: Path, where: RayFlags | None, progress: "RunProgress") -> "RunReport":
    if where is None:
        from ramify.runner import folder

        return folder.resume(run, observers=[progress.observe])
    from ramify.sharded import ray
    from ramify.store.layout import is_sharded

    if not is_sharded(run):
        raise ConfigError(
            f"--ray: {run} was started without --ray and has one journal; continue with: ramify resume {run}"
        )
    shown = {"show": progress.show, "say": progress.say}
    return ray.resume(run, num_workers=where.num_workers, address=where.address, **shown)
