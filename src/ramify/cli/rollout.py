"""`ramify rollout`: grow a tree for every problem into a new run folder."""

import argparse
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from ramify.cli.exit_codes import ExitCode
from ramify.cli.help_text import OUTPUT, flag_group
from ramify.cli.options import (
    RayFlags,
    add_budget_flag,
    add_config_flags,
    add_json_flag,
    add_out_flag,
    add_ray_flags,
    add_track_flag,
    budgets,
    ray_flags,
    resolved,
)
from ramify.cli.terminal import Terminal
from ramify.core.errors import ConfigError

if TYPE_CHECKING:
    from ramify.cli.progress import RunProgress
    from ramify.config.run_config import RunConfig
    from ramify.runner.report import RunReport

RUNS = Path("runs")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config_flags(parser)
    add_budget_flag(parser)
    add_ray_flags(parser)
    add_out_flag(parser)
    group = flag_group(parser, OUTPUT)
    group.add_argument("--dry-run", action="store_true", help="print the whole configuration, and start nothing")
    group.add_argument(
        "--metrics-port",
        type=int,
        metavar="N",
        help="serve Prometheus metrics on this port during the run (0: any free port)",
    )
    add_track_flag(parser)
    add_json_flag(parser)


def execute(options: argparse.Namespace, terminal: Terminal) -> ExitCode:
    from ramify.cli.data_read import DataRead
    from ramify.cli.running import measured, run_shown
    from ramify.cli.track import TrackedRun, tracked, tracked_kinds
    from ramify.runner import folder

    where, kinds = ray_flags(options), tracked_kinds(options)
    config = resolved(options, budgets(options)).config
    read = DataRead.of(config)
    for line in read.lines(unjudged="rows have no reward"):
        terminal.say(line)
    if options.dry_run:
        return _dry_run(config, terminal, is_json=options.json)
    if config.strategy.reading is not None:
        terminal.say(config.strategy.reading)
    title = config.preset or config.strategy.name
    if where is not None and options.metrics_port is not None:
        raise ConfigError(
            "--metrics-port: this process has no figures of the workers of --ray; leave out one of the two"
        )
    with (
        run_folder(options.out, config) as out,
        measured(options.metrics_port, terminal, agent=title) as (observers, measure),
        tracked(kinds, lambda: TrackedRun.of_folder(out), terminal) as tracker,
    ):

        def grow(progress: "RunProgress") -> "RunReport":
            if where is not None:
                return _divided(config, out, where, progress)
            return folder.begin(
                config, out, observers=[progress.observe, tracker.observe, *observers], measured=measure
            )

        return run_shown(
            grow, out, terminal, title=title, num_trees=config.prompts, is_json=options.json, data=read.as_dict()
        )


def _divided(config: "RunConfig", out: Path, where: RayFlags, progress: "RunProgress") -> "RunReport":
    """Grow a run with Ray actors."""
    from ramify.sharded import ray

    shown = {"show": progress.show, "say": progress.say}
    return ray.rollout(config, out, num_workers=where.num_workers, address=where.address, **shown)


@contextmanager
def run_folder(given: Path | None, config: "RunConfig") -> Iterator[Path]:
    """The folder of a run: the given one, or the first of runs/NAME-1, runs/NAME-2, … that this process could make.
    One that it made is removed if the run leaves it empty."""
    if given is not None:
        yield given
        return
    with made_folder(config.preset or config.strategy.name.rpartition(":")[2]) as out:
        yield out


@contextmanager
def made_folder(name: str) -> Iterator[Path]:
    """The first of runs/NAME-1, runs/NAME-2, … that this process could make. It is removed if it is left empty."""
    had_runs = RUNS.exists()
    out = new_folder(RUNS / f"{name}-{number}" for number in count(1))
    try:
        yield out
    finally:
        with suppress(OSError):
            out.rmdir()
            if not had_runs:
                RUNS.rmdir()


def new_folder(paths: Iterable[Path]) -> Path:
    """Make the first of `paths` that does not exist. Two processes never get the same."""
    for path in paths:
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise ConfigError(f"cannot make {path}: {error.strerror or error}; name a folder with --out") from error
        return path
    raise ConfigError("every folder is taken; name one with --out")


def _dry_run(config: "RunConfig", terminal: Terminal, *, is_json: bool) -> ExitCode:
    import msgspec

    from ramify.config.configure import to_toml
    from ramify.edge.url_keys import without_url_keys
    from ramify.experiments.spend_bounds import bounds

    most = bounds(config)
    if is_json:
        shown = json.loads(without_url_keys(msgspec.json.encode({"config": config, "at_most": most}).decode()))
        terminal.result("ramify.config/1", shown)
        return ExitCode.DONE
    terminal.lines([without_url_keys(to_toml(config))])
    bound = ", ".join(f"{value} {name}" for name, value in most.items() if value is not None)
    unbound = ", ".join(name for name, value in most.items() if value is None)
    terminal.out.print(f"# at most {bound}", markup=False)
    if unbound:
        terminal.out.print(f"# nothing bounds: {unbound}", markup=False)
    return ExitCode.DONE
