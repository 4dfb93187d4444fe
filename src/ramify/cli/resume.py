"""`ramify resume`: continue a run that was interrupted or killed; with `--ray` a divided run grows with Ray actors."""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ramify.cli.exit_codes import ExitCode
from ramify.cli.options import (
    RayFlags,
    add_json_flag,
    add_ray_flags,
    add_run_argument,
    add_track_flag,
    ray_flags,
)
from ramify.cli.terminal import Terminal
from ramify.core.errors import ConfigError

if TYPE_CHECKING:
    from ramify.cli.progress import RunProgress
    from ramify.runner.events import Observer
    from ramify.runner.report import RunReport


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run_argument(parser)
    add_ray_flags(parser)
    parser.add_argument(
        "--trust", action="store_true", help="go on with a run that another user, or another machine, began"
    )
    parser.add_argument(
        "--accept", default="", metavar="WHAT", help="go on with other inputs than before: data, weights, plugins"
    )
    add_track_flag(parser)
    add_json_flag(parser)


def execute(options: argparse.Namespace, terminal: Terminal) -> ExitCode:
    from ramify.cli.running import run_shown
    from ramify.cli.track import TrackedRun, tracked, tracked_kinds
    from ramify.config.configure import recorded
    from ramify.runner.inputs import accept_option
    from ramify.store.layout import shard_of
    from ramify.store.rewind import finish_rewind
    from ramify.store.store import header_and_config

    where, kinds = ray_flags(options), tracked_kinds(options)
    permitted = {"is_trusted": options.trust, "accept": accept_option(options.accept)}
    finish_rewind(options.run)
    header, config = header_and_config(options.run)
    with tracked(kinds, lambda: TrackedRun.of_folder(options.run), terminal) as tracker:
        return run_shown(
            lambda progress: _grow(options.run, where, progress, tracker.observe, permitted),
            options.run,
            terminal,
            title="resume",
            num_trees=shard_of(header).size(recorded(config, source=str(options.run)).prompts),
            is_json=options.json,
        )


def _grow(
    run: Path,
    where: RayFlags | None,
    progress: "RunProgress",
    track: "Observer",
    permitted: Mapping[str, Any],
) -> "RunReport":
    if where is None:
        from ramify.runner import folder

        return folder.resume(run, observers=[progress.observe, track], **permitted)
    from ramify.sharded import ray
    from ramify.store.layout import is_sharded

    if not is_sharded(run):
        raise ConfigError(
            f"--ray: {run} was started without --ray and has one journal; continue with: ramify resume {run}"
        )
    shown = {"show": progress.show, "say": progress.say}
    return ray.resume(run, **permitted, num_workers=where.num_workers, address=where.address, **shown)
