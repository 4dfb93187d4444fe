"""`ramify service`: grow batch after batch of rows for a trainer, and go on where the last call stopped.

Each batch is a file. It is marked in the journal once its file is written, so an interrupted batch is made again, and
it is the same one.
"""

import argparse
import asyncio
import signal
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ramify.cli.exit_codes import ExitCode, code_of_error, words_of
from ramify.cli.help_text import OUTPUT, WHAT, flag_group
from ramify.cli.options import add_budget_flag, add_config_flags, add_json_flag, budgets, resolved
from ramify.cli.terminal import Terminal, visible
from ramify.core.errors import ConfigError, RamifyError

if TYPE_CHECKING:
    from ramify.cli.progress import RunProgress
    from ramify.config.run_config import RunConfig
    from ramify.service.controller import Batch
    from ramify.service.manager import RolloutManager

SCHEMA = "ramify.service/1"
ERROR_SCHEMA = "ramify.error/1"
BATCHES = "batches"
"""Folder of the batches, in the folder of the service."""
SAVED = "finished batches are saved; the same command goes on"


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchMade:
    """One batch, as it is told."""

    batch: int
    file: str
    rows: int
    groups: int
    mean_reward: float | None
    """None = no row has a reward."""
    trained_tokens: int
    seconds: float

    @property
    def line(self) -> str:
        reward = "no reward" if self.mean_reward is None else f"mean reward {self.mean_reward:.3f}"
        return (
            f"batch {self.batch}: {self.rows} rows of {self.groups} groups, {reward}, "
            f"{self.trained_tokens} tokens to train, {self.seconds:.1f} s"
        )


@dataclass(slots=True)
class ServiceReport:
    """What one call of the command came to. Mutable."""

    first: int = 0
    """Number of the batch that this call began with: those before it were there already."""
    batches: list[BatchMade] = field(default_factory=list[BatchMade])
    counts: Mapping[str, int] = field(default_factory=dict[str, int])
    """Trees in each state, and dropped ones by reason."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config_flags(parser)
    add_budget_flag(parser)
    out = "folder of the service: a new one, or one to go on with"
    flag_group(parser, OUTPUT).add_argument("--out", type=Path, required=True, metavar="DIR", help=out)
    flag_group(parser, WHAT).add_argument(
        "--batches", type=int, required=True, metavar="N", help="number of batches in all, those in DIR included"
    )
    add_json_flag(parser)


def execute(options: argparse.Namespace, terminal: Terminal) -> ExitCode:
    from ramify.cli.progress import RunProgress
    from ramify.runner import loop
    from ramify.service.manager import RolloutManager

    config = _config(options)
    assert config.service is not None
    progress = RunProgress(terminal, title="service", num_trees=config.service.batch_size * options.batches)
    manager = RolloutManager(config, options.out, observers=[progress.observe], console=terminal.err)
    _say_before(manager, terminal)
    try:
        with progress:
            report = loop.run(_serve(manager, options, progress))
    except (KeyboardInterrupt, asyncio.CancelledError):
        terminal.fault(f"interrupted\n{SAVED}")
        return ExitCode.INTERRUPTED
    except RamifyError as error:
        return _stopped(error, terminal, is_json=options.json)
    _tell(options, report, terminal)
    return ExitCode.DONE


def _config(options: argparse.Namespace) -> "RunConfig":
    """The configuration of the command line, or that of the folder if the command line has none. Raises
    `ConfigError`."""
    from ramify.service.build import settled
    from ramify.service.service_journal import ServiceJournal

    if options.batches < 1:
        raise ConfigError(f"--batches {options.batches}: at least 1 is needed")
    if options.out.exists() and not options.out.is_dir():
        raise ConfigError(f"--out {options.out} is a file; name a folder")
    found = resolved(options, budgets(options))
    config = settled(found.config if found.sources else None, ServiceJournal(options.out))
    if config.service is not None and config.service.load_debug is not None:
        raise ConfigError(
            f"service.load_debug = {config.service.load_debug!r} reads batches, and `ramify service` makes them: "
            "leave it out"
        )
    return config


def _say_before(manager: "RolloutManager", terminal: Terminal) -> None:
    """What is read from the data file, and who judges, before the first token."""
    from ramify.cli.data_read import DataRead

    service = manager.service
    if service.reward_function is None and service.rollout_function is None:
        read = DataRead.of(replace(manager.config, prompts=len(manager.run.prepared.problems)))
        for line in read.lines(unjudged="rows have no reward"):
            terminal.say(line)


async def _serve(manager: "RolloutManager", options: argparse.Namespace, progress: "RunProgress") -> ServiceReport:
    """Make the batches that are missing. SIGTERM cancels it, as Ctrl-C does; a second one ends the process at once."""
    from ramify.runner.events import Resumed

    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None

    def stop() -> None:
        loop.remove_signal_handler(signal.SIGTERM)
        task.cancel()

    loop.add_signal_handler(signal.SIGTERM, stop)
    try:
        async with manager:
            report = ServiceReport(first=max(manager.saved, default=-1) + 1)
            progress.observe(Resumed(report.first * manager.service.batch_size))
            for rollout_id in range(report.first, options.batches):
                made = await _made(manager, rollout_id, options.out)
                report.batches.append(made)
                progress.say(made.line)
            report.counts = manager.counts
            return report
    finally:
        loop.remove_signal_handler(signal.SIGTERM)


async def _made(manager: "RolloutManager", rollout_id: int, out: Path) -> BatchMade:
    """Make one batch, write its file, and mark it as done."""
    from ramify.service import debug_files

    begun = time.monotonic()
    batch = await manager.generate(rollout_id)
    if manager.service.save_debug is None:
        path = out / BATCHES / f"{rollout_id}.jsonl"
        debug_files.save(batch.samples, path, rollout_id=rollout_id)
    else:
        path = debug_files.path_of(manager.service.save_debug, rollout_id)
    await manager.save(rollout_id)
    return _of(batch, path, time.monotonic() - begun)


def _of(batch: "Batch", path: Path, seconds: float) -> BatchMade:
    return BatchMade(
        batch=batch.rollout_id,
        file=str(path),
        rows=len(batch.samples),
        groups=len({sample.group_index for sample in batch.samples}),
        mean_reward=batch.metrics.get("rollout/raw_reward"),
        trained_tokens=sum(sum(sample.mask()) for sample in batch.samples),
        seconds=seconds,
    )


def _stopped(error: RamifyError, terminal: Terminal, *, is_json: bool) -> ExitCode:
    """Tell of an error that ended the service; if it can go on, say so."""
    code = code_of_error(error)
    if code is not ExitCode.SAVED:
        raise error
    said = words_of(error)
    terminal.fault(f"{said}\n{SAVED}")
    if is_json:
        terminal.result(ERROR_SCHEMA, {"error": said, "exit_code": int(code)})
    return code


def _tell(options: argparse.Namespace, report: ServiceReport, terminal: Terminal) -> None:
    made = report.batches
    if options.json:
        values: dict[str, Any] = {"run": str(options.out), "first": report.first, "batches": list(map(asdict, made))}
        terminal.result(SCHEMA, {**values, "trees": report.counts})
        return
    if not made:
        terminal.lines([f"{report.first} batches are there already; a larger --batches makes more"])
        return
    rows, groups = sum(each.rows for each in made), sum(each.groups for each in made)
    tokens, seconds = sum(each.trained_tokens for each in made), sum(each.seconds for each in made)
    number = f"{len(made)} {'batch' if len(made) == 1 else 'batches'}"
    before = f" behind {report.first} of earlier calls" if report.first else ""
    terminal.lines(
        [
            f"{number}{before}: {rows} rows of {groups} groups, {tokens} tokens to train in {seconds:.1f} s",
            f"trees: {', '.join(f'{name} {number}' for name, number in report.counts.items()) or 'none'}",
        ]
    )
    terminal.say(f"rows: {visible(str(Path(made[-1].file).parent))} | trees: ramify view {visible(str(options.out))}")
